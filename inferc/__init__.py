"""inferc: compile a causal language model into a self-contained serving artifact.

Names are imported on first use, so that `import inferc` stays cheap and the runtime never pulls in
the compiler.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inferc.driver import compile as compile
    from inferc.options import CompileOptions as CompileOptions
    from inferc.planning import plan as plan
    from inferc.runtime.async_engine import AsyncEngine as AsyncEngine
    from inferc.runtime.engine import Engine as Engine
    from inferc.runtime.engine import load as load
    from inferc.runtime.request import SamplingParams as SamplingParams

__version__ = "0.1.0"

_HOME = {
    "compile": "inferc.driver",
    "CompileOptions": "inferc.options",
    "plan": "inferc.planning",
    "load": "inferc.runtime.engine",
    "Engine": "inferc.runtime.engine",
    "AsyncEngine": "inferc.runtime.async_engine",
    "SamplingParams": "inferc.runtime.request",
}
__all__ = [*_HOME, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'inferc' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
