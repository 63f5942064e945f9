"""What the golden cases of normalize and raise turn into computes what the input computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from golden import GoldenCase, read_cases

from inferc.ir.core import Func, Value
from inferc.ir.dims import evaluate
from inferc.ir.interp import run
from inferc.ir.parse import parse_module
from inferc.ir.types import TensorType, Type
from inferc.passes.manager import run_passes
from inferc.passes.registry import parse_pipeline

STEMS = (
    "fold_constants", "canonicalize", "cse", "dce", "raise_norm", "raise_rope", "raise_attention",
    "raise_gated_mlp",
)  # fmt: skip
CASES = [case for s in STEMS for case in read_cases(Path(__file__).with_name(f"{s}.ir"))]
TOLERANCE = 3e-7  # constants are rounded to float32 as ops, not as attributes


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
@pytest.mark.parametrize("corner", ("low", "high"))
def test_computes_the_same(case: GoldenCase, corner: str) -> None:
    module = parse_module(case.source)
    func = module.funcs["f"]
    if not all(isinstance(a.type, TensorType) for a in func.args):
        pytest.skip("caches are not rewritten by these passes")
    bindings = {s.name: getattr(s, corner) for s in func.symbols.values()}
    inputs = [_array(a, bindings, seed) for seed, a in enumerate(func.args)]
    before = run(func, inputs, _param, precision="f64")
    passes = parse_pipeline(case.run)
    run_passes(module, passes, given=frozenset[str]().union(*(p.requires for p in passes)))
    after = run(module.funcs["f"], inputs, _param, precision="f64")
    for a, b in zip(before, after, strict=True):
        np.testing.assert_allclose(b, a, rtol=TOLERANCE, atol=TOLERANCE)


def test_a_wrong_rewrite_would_be_seen() -> None:
    func = _first_case("raise_norm")
    inputs = [_array(a, {"B": 2, "S": 3}, 0) for a in func.args]
    before = run(func, inputs, _param, precision="f64")[0]
    assert not np.allclose(before, run(func, inputs, _other_param, precision="f64")[0], rtol=1e-3)


def _first_case(stem: str) -> Func:
    return parse_module(next(c for c in CASES if c.file.stem == stem).source).funcs["f"]


def _array(arg: Value, bindings: dict[str, int], seed: int) -> np.ndarray:
    assert isinstance(arg.type, TensorType)
    shape = tuple(evaluate(s, bindings) for s in arg.type.shape)
    if arg.type.dtype.startswith("i"):  # token positions, where the case has a model in mind
        return np.broadcast_to(np.arange(shape[-1]), shape).astype(np.int64)
    values = np.random.default_rng(seed).uniform(0.25, 2.0, shape)
    return values > 1 if arg.type.dtype == "bool" else values


def _param(name: str, type_: Type) -> np.ndarray:
    assert isinstance(type_, TensorType)
    shape = tuple(evaluate(s, {}) for s in type_.shape)
    return np.random.default_rng(len(name)).standard_normal(shape)


def _other_param(name: str, type_: Type) -> np.ndarray:
    return _param(name, type_) + 0.1
