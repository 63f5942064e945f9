"""Op cards, one file a family. Importing the package fills the table."""

from inferc.ir.ops import (
    attention,
    capture,
    contract,
    elementwise,
    experts,
    lookup,
    nn,
    recurrent,
    select,
    serve,
    shape,
    source,
)

__all__ = [
    "attention",
    "capture",
    "contract",
    "elementwise",
    "experts",
    "lookup",
    "nn",
    "recurrent",
    "select",
    "serve",
    "shape",
    "source",
]
