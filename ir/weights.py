"""Which ops compute weights: they depend on parameters only, not on the step."""

from __future__ import annotations

from inferc.ir.core import Func, Op
from inferc.ir.dims import Dim
from inferc.ir.types import TensorType


def weight_ops(func: Func) -> frozenset[Op]:
    """Ops that depend on parameters only: `param`, and what is computed from those alone."""
    found: set[Op] = set()
    for op in func.ops:
        of_weights = op.operands and all(v.producer in found for v in op.operands)
        if op.name == "param" or of_weights:
            found.add(op)
    return frozenset(found)


def has_tokens(op: Op) -> bool:
    """Whether a result has a symbolic size: a weight repeated for every token is none itself."""
    types = (r.type for r in op.results)
    return any(isinstance(s, Dim) for t in types if isinstance(t, TensorType) for s in t.shape)
