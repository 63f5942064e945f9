"""Computed tables that a formula gives exactly: masks of positions, sines and cosines of them.

Models keep them as buffers, for as many positions as they were made for: far too large for
constants, and nothing but a comparison of positions, or positions times a few frequencies. A
formula is used only where it gives the whole table again.
"""

from __future__ import annotations

import numpy as np

from inferc.frontend.aten_table import Emitter
from inferc.ir.core import Value
from inferc.ir.ops.attention import causal_mask


def table_of_positions(e: Emitter, table: np.ndarray) -> Value | None:
    """The table as ops, if it is a mask [.., N, N] or [N, 2 * F] sines beside cosines."""
    return _mask(e, table) if table.dtype.name != "float32" else _mask(e, table) or _waves(e, table)


def _mask(e: Emitter, table: np.ndarray) -> Value | None:
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


_WAVE_TOLERANCE = 2e-6  # between two float32 sines of one angle
_ULPS = 4  # how far the frequency found from the angles may be from the one that made them


def _waves(e: Emitter, table: np.ndarray) -> Value | None:
    """sin(p f) beside cos(p f) for row p; one row (of the padding token) may be zeros instead."""
    if table.ndim != 2 or table.shape[0] < 4 or table.shape[1] % 2:
        return None
    (rows, columns), blank = table.shape, np.flatnonzero((table == 0).all(axis=1))
    if len(blank) > 1:
        return None
    kept = np.setdiff1d(np.arange(rows), blank)
    frequencies = _frequencies(table, kept)
    if np.abs(_sines(kept, frequencies) - table[kept]).max() > _WAVE_TOLERANCE:
        return None
    row = e.op("core.iota", size=rows, dtype="i64")
    factors = e.constant(tuple(map(float, frequencies)), (columns // 2,), "f32")
    angle = e.op("core.mul", e.reshape(e.cast(row, "f32"), (rows, 1)), factors)
    waves = e.op("core.concat", e.op("core.sin", angle), e.op("core.cos", angle), axis=1)
    if not len(blank):
        return waves
    kept_row = e.op("core.ne", row, e.scalar(int(blank[0]), "i64"))
    return e.op("core.mul", waves, e.reshape(e.cast(kept_row, "f32"), (rows, 1)))


def _sines(rows: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
    angle = rows.astype(np.float32)[:, None] * frequencies
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=1)


def _frequencies(table: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """The float32 frequencies whose angles in float32 come nearest to the table; [F]."""
    half = table.shape[1] // 2
    phase = np.arctan2(table[:, :half].astype(np.float64), table[:, half:].astype(np.float64))
    low, last = kept[np.flatnonzero(np.diff(kept) == 1)[0]], kept[-1]
    found = np.mod(phase[low + 1] - phase[low], 2 * np.pi)
    turns = np.round((last * found - phase[last]) / (2 * np.pi))  # exact up to millions of rows
    found = (phase[last] + 2 * np.pi * turns) / last
    best, sample = found.astype(np.float32), kept[-min(len(kept), 256) :]
    wanted = table[sample]
    candidates = [best]
    for direction in (-np.inf, np.inf):
        value = best
        for _ in range(_ULPS):
            value = np.nextafter(value, np.float32(direction))
            candidates.append(value)
    errors = np.stack([_column_error(sample, c, wanted) for c in candidates])
    return np.stack(candidates)[errors.argmin(axis=0), np.arange(half)]


def _column_error(rows: np.ndarray, frequencies: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    half = len(frequencies)
    error = np.abs(_sines(rows, frequencies) - wanted).max(axis=0)
    return np.maximum(error[:half], error[half:])
