"""Where rows come from on CUDA: positions, other rows, other columns."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from inferc.ir.interp import run
from inferc.ir.parse import parse_func
from tests.codegen.cuda.cuda_runner import ORDERS, CudaUnit, compile_units
from tests.codegen.test_rows import body

GATHER = body(
    "%x: f32[T, 3, 11], %i: i32[R]", "f32[R, 3, 11]",
    "%y = core.gather_rows(%x, %i) : f32[R, 3, 11]", "return %y",
).replace("T in 1..512", "T in 1..512, R in 1..64")  # fmt: skip
TAKE = body(
    "%x: f32[T, 40], %i: i32[300]", "f32[T, 300]",
    "%y = core.take(%x, %i) : f32[T, 300]", "return %y",
)  # fmt: skip
ROPE = body(
    "%p: i32[T]", "f32[T, 5], f32[T, 5]",
    '%f = core.constant() {values = (1.0, 0.5, 0.03, 0.002, 0.00001), shape = (5,), dtype = "f32"}'
    " : f32[5]",
    "%c, %s = nn.rope_table(%p, %f) {scale = 1.25} : f32[T, 5], f32[T, 5]", "return %c, %s",
)  # fmt: skip
TEXTS = {"gather": GATHER, "take": TAKE, "rope": ROPE}


@cache
def units() -> dict[str, CudaUnit]:
    return dict(zip(TEXTS, compile_units(list(TEXTS.values())), strict=True))


@pytest.mark.parametrize("name", ["take", "rope", "gather"])
def test_against_the_interpreter(name: str) -> None:
    unit, rng = units()[name], np.random.default_rng(1)
    rows = 6
    given = {
        "take": [rng.standard_normal((rows, 40)), rng.integers(0, 40, 300)],
        "rope": [np.array([0, 1, 77, 4095, 131071, 1 << 20])],
        "gather": [rng.standard_normal((9, 3, 11)), np.array([8, 0, 0, 3, 7, 1])],
    }[name]  # fmt: skip
    arrays = [a.astype(np.float32 if a.dtype == np.float64 else np.int32) for a in given]
    expected = run(parse_func(TEXTS[name]), arrays)
    for order in ORDERS:
        for a, b in zip(unit(arrays, rows, order=order), expected, strict=True):
            assert np.abs(a - b).max() < 3e-7 * np.abs(b).max()
