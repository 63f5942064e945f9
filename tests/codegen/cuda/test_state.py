"""Recurrent kernels against float64; bit-equal for chunks, batch, slots and orders of threads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from cuda_runner import ORDERS, CudaUnit, StepArgs, check_guards, compile_units, guarded

from inferc.ir.types import StateType, TensorType
from tests.codegen.recurrence_cases import RecurrenceCase, Sequences, close, wanted


@dataclass(frozen=True)
class Case(RecurrenceCase):
    """A core with its sizes; `before` elements lie before each row of its first operand."""

    before: int = 0

    def body(self) -> str:
        """The group: the core on its arguments, the first one a slice of wider rows."""
        core = self.recurrence
        state = StateType(self.shape(core.state), "f32")
        rows = [f"f32[{', '.join(map(str, ('T', *self.shape(axes))))}]" for _, axes in core.rows]
        weights = [TensorType(self.shape(axes), "f32") for _, axes in self.weights()]
        given, first = ["%x0", *(f"%x{i}" for i in range(1, len(rows)))], ""
        types = list(rows)
        if self.before:
            width = self.shape(core.rows[0][1])[0]
            types[0] = f"f32[T, {width + self.before}]"
            given[0] = "%part"
            first = (
                f"%part = core.slice(%x0) {{axis = 1, start = {self.before}, "
                f"stop = {width + self.before}, step = 1}} : {rows[0]}"
            )
        args = [f"%s: {state}", *(f"%x{i}: {t}" for i, t in enumerate(types))]
        args += ["%positions: i32[T]", "%starts: i32[R + 1]", "%slots: i32[R]"]
        args += [f"%w{i}: {t}" for i, t in enumerate(weights)]
        operands = ["%s", *given, "%positions", "%starts", "%slots"]
        operands += [f"%w{i}" for i in range(len(weights))]
        result = f"f32[{', '.join(map(str, ('T', *self.shape(core.result))))}]"
        attrs = ", ".join(f'{k} = "{v}"' for k, v in self.attrs.items())
        return (
            f"func @body({', '.join(args)}) -> ({result}, {state}) where T in 1..64, R in 1..8 {{\n"
            f"  {first}\n  %y, %after = serve.{self.core}({', '.join(operands)}) {{{attrs}}} : "
            f"{result}, {state}\n  return %y, %after\n}}\n"
        )


CASES = {
    "conv_silu": Case("causal_conv1d", {"C": 37, "K": 4}, {"activation": "silu"}, before=3),
    "conv_bias": Case("causal_conv1d", {"C": 130, "K": 3}, {"activation": "none"}, bias=True),
    "conv_one": Case("causal_conv1d", {"C": 5, "K": 2}, {"activation": "none"}),
    "selective": Case("selective_scan", {"C": 37, "N": 5}, before=2),
    "selective_wide": Case("selective_scan", {"C": 32, "N": 16}),
    "ssd_odd": Case("ssd_scan", {"H": 4, "P": 40, "G": 2, "N": 21}),
    "ssd_eighths": Case("ssd_scan", {"H": 2, "P": 24, "G": 1, "N": 132}),
    "delta_head": Case("gated_delta_rule", {"H": 4, "G": 2, "K": 5, "V": 24, "M": 1}),
    "delta_key": Case("gated_delta_rule", {"H": 3, "G": 3, "K": 20, "V": 33, "M": 20}),
    "linear": Case("linear_scan", {"C": 131}),
}  # fmt: skip


@cache
def units() -> dict[str, CudaUnit]:
    made = compile_units([case.body() for case in CASES.values()])
    return dict(zip(CASES, made, strict=True))


# Begun, going on, without tokens, longer than what a block takes at once.
MIXED = Sequences((5, 1, 0, 35), (0, 3, 2, 7), (4, 0, 2, 1))


def run(
    name: str, batch: Sequences, rows: list[np.ndarray], weights: list[np.ndarray],
    states: np.ndarray, order: int = 0,
) -> np.ndarray:  # fmt: skip
    """Results `[T, ..]`; `states` are changed in place."""
    tokens, before = len(batch.positions), CASES[name].before
    if before:
        nothing = np.full((tokens, before), np.nan, np.float32)
        rows = [np.concatenate([nothing, rows[0]], axis=1), *rows[1:]]
    pool, whole = guarded(states.nbytes)
    pool.view(np.float32)[:] = states.reshape(-1)
    step = batch.positions, batch.starts, np.array(batch.slots, np.int32)
    (y,) = units()[name](
        [pool.ctypes.data, *rows, *step, *weights], tokens,
        args=StepArgs(tokens=tokens, sequences=len(batch.slots)), order=order,
    )  # fmt: skip
    check_guards(pool, whole)
    states[...] = pool.view(np.float32).reshape(states.shape)
    return y


@pytest.mark.parametrize("name", CASES)
def test_against_float64_in_a_ragged_batch(name: str) -> None:
    rows, weights = CASES[name].inputs(len(MIXED.positions))
    for order in ORDERS:
        states = CASES[name].states()
        y, after = wanted(CASES[name], MIXED, rows, weights, states)
        states[4] = np.nan  # what the last sequence in this slot has left is not read
        idle = states[[2, 3]].copy()
        assert close(run(name, MIXED, rows, weights, states, order), y)
        assert close(states[[0, 1, 4]], after[[0, 1, 4]])
        np.testing.assert_array_equal(states[[2, 3]], idle)  # no tokens; nobody's
    begun = Sequences(MIXED.lengths, (0,) * 4, MIXED.slots)
    again = run(name, begun, rows, weights, CASES[name].states())
    assert not close(again, y), "the states are not read"


@pytest.mark.parametrize("name", CASES)
def test_chunks_and_batch_change_nothing(name: str) -> None:
    tokens = 13
    rows, weights = CASES[name].inputs(tokens)
    states = CASES[name].states()
    whole = run(name, Sequences((tokens,), (0,), (1,)), rows, weights, states)
    for chunks in ((4, 9), (1,) * tokens, (12, 1)):
        pieces, kept, at = [], CASES[name].states(), 0
        for n in chunks:
            part = [r[at : at + n] for r in rows]
            pieces.append(run(name, Sequences((n,), (at,), (1,)), part, weights, kept))
            at += n
        np.testing.assert_array_equal(np.concatenate(pieces), whole)
        np.testing.assert_array_equal(kept, states)
    both = [np.concatenate([r[::-1], r]) for r in rows]
    kept = CASES[name].states()
    y = run(name, Sequences((tokens, tokens), (0, 0), (3, 2)), both, weights, kept)
    np.testing.assert_array_equal(y[tokens:], whole)
    np.testing.assert_array_equal(kept[2], states[1])
