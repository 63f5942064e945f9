"""Large constants that are patterns: counts, triangles, one repeated number.

Exporters bake masks and position numbers into a graph as tables as large as the context squared.
Such a table is written here as the ops that make it, after comparing every element, so that passes
can read what it means.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inferc.frontend.onnx_table import OnnxEmitter
from inferc.frontend.onnx_values import Filled, Item
from inferc.frontend.onnx_weights import integers
from inferc.frontend.weights import DENSE_DTYPES, StoredTensor
from inferc.ir.core import Value

_INTEGERS = ("bool", "i64", "i32")


def patterned(e: OnnxEmitter, tensor: StoredTensor) -> Item | None:
    """The table as ops, or None where it is no pattern."""
    array = _values(tensor)
    if array is None:
        return None
    dtype = tensor.dtype if tensor.dtype in _INTEGERS else "f32"
    return pattern_of(e, array, dtype)


def pattern_of(e: OnnxEmitter, array: np.ndarray, dtype: str) -> Item | None:
    """See `patterned`; the dtype is that of the result."""
    if array.size == 0:
        return None
    first = array.flat[0]
    last_row = array.reshape(-1, array.shape[-1])[0]
    if np.array_equal(last_row, np.full_like(last_row, first)) and bool((array == first).all()):
        return Filled(_number(first), array.shape, dtype)
    if max(array.shape) == array.size:
        return _counted(e, array, dtype)
    return _triangle(e, array, dtype) if array.ndim >= 2 else None


def _values(tensor: StoredTensor) -> np.ndarray | None:
    if tensor.dtype in DENSE_DTYPES:
        square = len(tensor.shape) >= 2 and tensor.shape[-1] == tensor.shape[-2]
        return tensor.read() if square or len(tensor.shape) == 1 else None
    if tensor.dtype not in _INTEGERS:
        return None
    return integers(tensor)


def _counted(e: OnnxEmitter, array: np.ndarray, dtype: str) -> Value | None:
    """0, 1, 2 … along the only axis that is longer than one."""
    if dtype == "bool" or not np.array_equal(array.ravel(), np.arange(array.size)):
        return None
    counted = e.emit("iota", size=array.size, dtype="i64")
    return e.reshape(e.cast(counted, dtype), array.shape)


def _triangle(e: OnnxEmitter, array: np.ndarray, dtype: str) -> Value | None:
    """One number on and below the diagonal (or below it), another above it."""
    *lead, rows, columns = array.shape
    if rows != columns or rows < 2 or any(size != 1 for size in lead):
        return None
    square = array.reshape(rows, columns)
    below, above, corner = square[1, 0], square[0, 1], square[0, 0]
    if below == above or corner not in (below, above):
        return None
    strict = corner == above
    seen = np.tri(rows, columns, -1 if strict else 0, dtype=bool)
    if not bool((np.where(seen, below, above) == square).all()):
        return None
    row = e.reshape(e.emit("iota", size=rows, dtype="i64"), (rows, 1))
    column = e.reshape(e.emit("iota", size=columns, dtype="i64"), (1, columns))
    inside = e.emit("lt" if strict else "le", column, row)
    if dtype != "bool":
        numbers = (e.scalar(_number(v), dtype) for v in (below, above))
        inside = e.emit("where", inside, *numbers)
    elif not bool(below):
        inside = e.emit("logical_not", inside)
    return e.reshape(inside, array.shape)


def _number(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
