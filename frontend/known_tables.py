"""Computed tables that a formula gives exactly: masks of positions.

Models keep them as buffers, for as many positions as they were made for: far too large for
constants, and nothing but a comparison of positions.
"""

from __future__ import annotations

import numpy as np

from inferc.frontend.aten_table import Emitter
from inferc.ir.core import Value
from inferc.ir.ops.attention import causal_mask


def table_of_positions(e: Emitter, table: np.ndarray) -> Value | None:
    """The table as ops, if it is a mask [.., N, N] of one of the known kinds."""
    *lead, rows, columns = table.shape
    if any(size != 1 for size in lead) or rows != columns or rows < 2:
        return None
    seen = table.reshape(rows, columns)
    if not np.isin(seen, (0, 1)).all():
        return None
    seen = seen.astype(bool)
    window = _window(seen)
    positions = np.arange(rows)
    if not np.array_equal(seen, causal_mask(positions, positions, window, None)):
        return None
    mask = _comparison(e, rows, window)
    return e.reshape(e.cast(mask, _dtype(table)), table.shape)


def _window(seen: np.ndarray) -> int | None:
    """How many keys the last query sees, if those are not all."""
    visible = int(seen[-1].sum())
    return visible if 0 < visible < len(seen) else None


def _comparison(e: Emitter, size: int, window: int | None) -> Value:
    keys = e.op("core.iota", size=size, dtype="i64")
    queries = e.reshape(keys, (size, 1))
    mask = e.op("core.le", keys, queries)
    if window is None:
        return mask
    first = e.op("core.sub", queries, e.scalar(window, "i64"))
    return e.op("core.logical_and", mask, e.op("core.gt", keys, first))


def _dtype(table: np.ndarray) -> str:
    names = {"bool": "bool", "float32": "f32", "int64": "i64", "int32": "i32", "uint8": "u8"}
    return names[table.dtype.name]
