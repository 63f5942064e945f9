"""Recurrent kernels against float64; bit-equal for chunks, batch, slots, strides and workers."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from kernel_library import FLAGS, HERE, ISAS, Guarded, cached, opened, pointer

from tests.codegen.recurrence_cases import RecurrenceCase as Case
from tests.codegen.recurrence_cases import Sequences, close, wanted

_ROWS_MAX = 5  # operands with rows that the C functions take


CASES = {
    "conv_silu": Case("causal_conv1d", {"C": 37, "K": 4}, {"activation": "silu"}),
    "conv_bias": Case("causal_conv1d", {"C": 16, "K": 3}, {"activation": "none"}, bias=True),
    "conv_one": Case("causal_conv1d", {"C": 5, "K": 2}, {"activation": "none"}),
    "selective": Case("selective_scan", {"C": 37, "N": 5}),
    "selective_wide": Case("selective_scan", {"C": 48, "N": 16}),
    "ssd_odd": Case("ssd_scan", {"H": 4, "P": 24, "G": 2, "N": 5}),
    "ssd_wide": Case("ssd_scan", {"H": 2, "P": 64, "G": 1, "N": 16}),
    "ssd_own": Case("ssd_scan", {"H": 3, "P": 32, "G": 3, "N": 7}),
    "delta_head": Case("gated_delta_rule", {"H": 4, "G": 2, "K": 5, "V": 24, "M": 1}),
    "delta_key": Case("gated_delta_rule", {"H": 4, "G": 4, "K": 20, "V": 32, "M": 20}),
    "delta_wide": Case("gated_delta_rule", {"H": 2, "G": 1, "K": 16, "V": 64, "M": 1}),
    "linear": Case("linear_scan", {"C": 37}),
}  # fmt: skip


@cache
def library(isa: str) -> ctypes.CDLL:
    return opened(isa, build)


def build(isa: str) -> Path:
    options = [*FLAGS, *ISAS[isa][1].split(), "-shared"]
    return cached(f"{isa}-state.so", options, HERE / "library_state.cpp", isa=isa)


MIXED = Sequences((5, 1, 0, 9), (0, 3, 2, 7), (4, 0, 2, 1))  # begun, going on, without tokens


def run(
    isa: str, name: str, batch: Sequences, rows: list[np.ndarray], weights: list[np.ndarray],
    states: np.ndarray, workers: int = 1, padding: int = 0,
) -> np.ndarray:  # fmt: skip
    """Results `[T, ..]`; `states` are changed in place. Rows lie `padding` floats apart."""
    case, tokens = CASES[name], len(batch.positions)
    wide = [np.full((max(tokens, 1), r[0].size + padding), np.nan, np.float32) for r in rows]
    for w, r in zip(wide, rows, strict=True):
        w[:tokens, padding // 2 : padding // 2 + r[0].size] = r.reshape(tokens, -1)
    pool, out = (
        Guarded(states.shape, fill=None),
        Guarded((tokens, *case.shape(case.recurrence.result))),
    )
    pool.array[...] = states
    begins = [pointer(w.reshape(-1)[padding // 2 :]) for w in wide]
    pointers = (ctypes.c_void_p * _ROWS_MAX)(*begins)
    strides = (ctypes.c_int64 * _ROWS_MAX)(*(w.shape[1] for w in wide))
    held = (ctypes.c_void_p * 4)(*map(pointer, weights))
    arrays = batch.positions, batch.starts, np.array(batch.slots, np.int32)
    for worker in range(workers):
        getattr(library(isa), name)(
            *map(pointer, (pool.array, *arrays)),
            len(batch.slots), pointers, strides, held, pointer(out.array),
            worker, workers,
        )  # fmt: skip
    pool.check()
    out.check()
    states[...] = pool.array
    return out.array.copy()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", CASES)
def test_against_float64_in_a_ragged_batch(name: str, isa: str) -> None:
    rows, weights = CASES[name].inputs(len(MIXED.positions))
    states = CASES[name].states()
    y, after = wanted(CASES[name], MIXED, rows, weights, states)
    states[4] = np.nan  # what the last sequence in this slot has left is not read
    idle = states[[2, 3]].copy()
    assert close(run(isa, name, MIXED, rows, weights, states), y)
    assert close(states[[0, 1, 4]], after[[0, 1, 4]])
    np.testing.assert_array_equal(states[[2, 3]], idle)  # no tokens; nobody's
    begun = Sequences(MIXED.lengths, (0,) * 4, MIXED.slots)
    again = run(isa, name, begun, rows, weights, CASES[name].states())
    assert not close(again, y), "the states are not read"


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", CASES)
def test_chunks_batch_strides_and_workers_change_nothing(name: str, isa: str) -> None:
    tokens = 13
    rows, weights = CASES[name].inputs(tokens)
    states = CASES[name].states()
    whole = run(isa, name, Sequences((tokens,), (0,), (1,)), rows, weights, states)
    for chunks in ((4, 9), (1,) * tokens, (12, 1)):
        pieces, kept, at = [], CASES[name].states(), 0
        for n in chunks:
            part = [r[at : at + n] for r in rows]
            pieces.append(run(isa, name, Sequences((n,), (at,), (1,)), part, weights, kept))
            at += n
        np.testing.assert_array_equal(np.concatenate(pieces), whole)
        np.testing.assert_array_equal(kept, states)
    both = [np.concatenate([r[::-1], r]) for r in rows]
    batch = Sequences((tokens, tokens), (0, 0), (3, 2))
    for workers, padding in ((1, 0), (3, 10), (8, 6)):
        kept = CASES[name].states()
        y = run(isa, name, batch, both, weights, kept, workers, padding)
        np.testing.assert_array_equal(y[tokens:], whole)
        np.testing.assert_array_equal(kept[2], states[1])
