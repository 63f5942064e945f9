"""Computes what depends on small constants only.

    %a = core.constant() {values = (2.0,), ...}
    %b = core.sqrt(%a)      =>      %b = core.constant() {values = (1.4142135623730951,), ...}

Constants are computed in float64, whatever their dtype, as the interpreter does in its wide mode:
folding then loses nothing. A count (`core.iota`) of a constant size is a constant as well. Results
of more than `max_elements` elements stay ops.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inferc.ir.core import Module, Op, Value
from inferc.ir.types import TensorType, numpy_dtype
from inferc.passes.base import Pass, PassContext
from inferc.passes.driver import Edit, Pattern, apply_patterns
from inferc.passes.match import made_by, tensor


@dataclass(frozen=True)
class FoldConstants(Pass):
    """Constant folding."""

    name = "fold-constants"
    max_elements: int = 1024

    def run(self, module: Module, context: PassContext) -> None:
        """Rewrite every function."""
        for func in module:
            roots = frozenset(
                op.name
                for op in func.ops
                if op.name.startswith("core.") and (op.operands or op.name == "core.iota")
            )
            pattern = Pattern("constant", roots, self._fold)
            apply_patterns(func, context, (pattern,))

    def _fold(self, op: Op, edit: Edit) -> Value | None:
        if len(op.results) != 1 or not all(made_by(v, "core.constant") for v in op.operands):
            return None
        type_ = tensor(op.result)
        if type_.is_block or not self._is_small(type_):
            return None
        array = op.card.reference(*map(_array, op.operands), **op.attrs)
        values = _values(np.asarray(array), type_)
        return edit.op("core.constant", values=values, shape=type_.shape, dtype=type_.dtype)

    def _is_small(self, type_: TensorType) -> bool:
        elements = type_.elements
        return isinstance(elements, int) and elements <= self.max_elements


def _array(value: Value) -> np.ndarray:
    assert value.producer is not None
    type_ = tensor(value)
    dtype = np.dtype(np.float64) if type_.is_float else numpy_dtype(type_.dtype)
    shape = [s for s in type_.shape if isinstance(s, int)]  # a constant has no other sizes
    return np.array(value.producer.attrs["values"], dtype).reshape(shape)


def _values(array: np.ndarray, type_: TensorType) -> tuple[float | int | bool, ...]:
    wide = array.astype(np.float64 if type_.is_float else numpy_dtype(type_.dtype))
    return tuple(wide.ravel().tolist())
