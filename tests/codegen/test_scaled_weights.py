"""Products with bytes as weights and a scale an output: int8 and float8 as checkpoints do it."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from inferc.ir.core import Module
from inferc.ir.interp import run
from inferc.ir.parse import parse_module
from inferc.ir.types import TensorType
from inferc.passes.manager import run_passes
from inferc.passes.registry import make_pass
from tests.codegen.experts_step import FUSE, HEAD, VOCAB, batch
from tests.codegen.step_runner import Compiled

STEP_TOKENS = 40


def scaled(dtype: str, n: int, k: int) -> Module:
    """y = (x wᵀ) * s + b of looked-up rows x."""

    def function(name: str, t: str, where: str) -> str:
        lines = (
            f"%rows = param @rows : f32[{VOCAB}, {k}]",
            f"%w = param @w : {dtype}[{n}, {k}]",
            f"%s = param @s : f32[{n}]",
            f"%b = param @b : f32[{n}]",
            f"%x = core.embedding(%rows, %ids) : f32[{t}, {k}]",
            f"%y = core.linear(%x, %w) : f32[{t}, {n}]",
            f"%m = core.mul(%y, %s) : f32[{t}, {n}]",
            f"%a = core.add(%m, %b) : f32[{t}, {n}]",
            f"%z = core.gather_rows(%a, %logit_indices) : f32[L, {n}]",
            "return %z",
        )
        head = HEAD.format(name=name, t=t, hidden=n, where=where)
        return head + " {\n  " + "\n  ".join(lines) + "\n}\n"

    limits = f"R in 1..8, P in 1..32, L in 1..{STEP_TOKENS}"
    text = function("prefill", "T", f"T in 1..{STEP_TOKENS}, {limits}")
    module = parse_module(text + function("decode", "R", limits))
    run_passes(module, [make_pass(name) for name in FUSE], given={"flat", "phases"})
    return module


def weights(dtype: str, n: int, k: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    w = rng.integers(-128, 128, (n, k)).astype(np.int8)
    if dtype == "f8e4m3":
        w = rng.standard_normal((n, k)).astype(ml_dtypes.float8_e4m3fn)
    floats = {"rows": (VOCAB, k), "s": (n,), "b": (n,)}
    return {"w": w} | {s: rng.standard_normal(v).astype(np.float32) for s, v in floats.items()}


@pytest.mark.parametrize(
    ("dtype", "compute", "tolerance"),
    [("i8", "f32", 2e-6), ("i8", "int16", 1e-4), ("i8", "int8", 0.02), ("f8e4m3", "auto", 2e-6)],
)
@pytest.mark.parametrize(("n", "k"), [(21, 50), (48, 160)])
def test_against_the_reference(
    dtype: str, compute: str, tolerance: float, n: int, k: int, tmp_path: Path
) -> None:
    module, stored = scaled(dtype, n, k), weights(dtype, n, k)
    step = Compiled(module, stored, tmp_path, 1, compute=compute)  # type: ignore[arg-type]
    code = "".join(source.code for source in step.generated.sources())
    math = "f32" if compute == "auto" else compute  # of eight-bit floats
    assert f"matmul<{dtype.upper()}, Math{math.capitalize()}>" in code
    ids = np.random.default_rng(1).integers(0, VOCAB, STEP_TOKENS).astype(np.int32)

    def value(name: str, type_: TensorType) -> np.ndarray:
        return stored[name].astype(np.float64)

    wanted = run(module.funcs["prefill"], batch(ids).arrays(), value, precision="f64")[0]
    whole = step.step("prefill", batch(ids))
    assert np.abs(whole - wanted).max() < tolerance * np.abs(wanted).max()
    for start, stop in ((0, 1), (3, 6), (5, 21)):
        part = step.step("prefill", batch(ids[start:stop]))
        np.testing.assert_array_equal(part, whole[start:stop])
    np.testing.assert_array_equal(step.step("decode", batch(ids[7:8])), whole[7:8])
    step.close()
