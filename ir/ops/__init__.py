"""Op cards, one file a family. Importing the package fills the table."""

from inferc.ir.ops import contract, elementwise, nn, serve, shape

__all__ = ["contract", "elementwise", "nn", "serve", "shape"]
