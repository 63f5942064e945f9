"""Large constants that are patterns: counts and triangles.

Exporters and modules keep masks and position numbers as tables as large as the context squared.
Such a table is written here as the ops that make it, after comparing every element, so that passes
can read what it means.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inferc.frontend.aten_table import Emitter
from inferc.ir.core import Value


def patterned(e: Emitter, array: np.ndarray, dtype: str) -> Value | None:
    """The table as ops with results of `dtype`, or None where it is no pattern."""
    if array.size == 0:
        return None
    first = array.flat[0]
    if bool((array == first).all()):
        return e.broadcast(e.scalar(_number(first), dtype), array.shape)
    if max(array.shape) == array.size:
        return _counted(e, array, dtype)
    return _triangle(e, array, dtype) if array.ndim >= 2 else None


def _counted(e: Emitter, array: np.ndarray, dtype: str) -> Value | None:
    """0, 1, 2 … along the only axis that is longer than one."""
    if dtype == "bool" or not np.array_equal(array.ravel(), np.arange(array.size)):
        return None
    counted = e.op("core.iota", size=array.size, dtype="i64")
    return e.reshape(e.cast(counted, dtype), array.shape)


def _triangle(e: Emitter, array: np.ndarray, dtype: str) -> Value | None:
    """One number on and below the diagonal (or below it), another above it."""
    *lead, rows, columns = array.shape
    if rows != columns or rows < 2 or any(size != 1 for size in lead):
        return None
    square = array.reshape(rows, columns)
    below, above, corner = square[1, 0], square[0, 1], square[0, 0]
    if below == above or corner not in (below, above):
        return None
    strict = bool(corner == above)
    inside = np.tri(rows, columns, -1 if strict else 0, dtype=bool)
    if not bool((np.where(inside, below, above) == square).all()):
        return None
    row = e.reshape(e.op("core.iota", size=rows, dtype="i64"), (rows, 1))
    column = e.reshape(e.op("core.iota", size=columns, dtype="i64"), (1, columns))
    made = e.op("core.lt" if strict else "core.le", column, row)
    if dtype != "bool":
        made = e.op("core.where", made, *(e.scalar(_number(v), dtype) for v in (below, above)))
    elif not bool(below):
        made = e.op("core.logical_not", made)
    return e.reshape(made, array.shape)


def _number(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
