"""Latent attention computes what the expanded form computes, with a cache of the latent only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from golden import read_cases

from inferc.ir.core import Module
from inferc.ir.interp import run
from inferc.ir.parse import parse_module
from inferc.ir.text import print_module
from inferc.ir.types import CacheType, TensorType
from inferc.passes.manager import run_passes
from inferc.passes.pipeline import pipeline
from inferc.passes.plan_kv import kv_plan
from inferc.passes.registry import make_pass
from tests.frontend.captured import captured

GOLDEN = read_cases(Path(__file__).with_name("latent_attention.ir"))
REWRITTEN = [case for case in GOLDEN if case.expected is not None]
TOLERANCE = 1e-12


def parameter(name: str, type_: TensorType) -> np.ndarray:
    seed = sum(map(ord, name))
    return np.random.default_rng(seed).standard_normal([int(s) for s in type_.shape])  # type: ignore[arg-type]


def forward(module: Module) -> np.ndarray:
    """Nine tokens: past the window of the cases."""
    ids = np.random.default_rng(0).integers(0, 32, 9).astype(np.int32)
    positions = np.arange(9, dtype=np.int32)
    return run(module.funcs["forward"], [ids, positions], parameter, precision="f64")[0]


def rewritten(source: str) -> Module:
    module = parse_module(source)
    run_passes(module, [make_pass("latent-attention")], given={"flat"})
    return module


@pytest.mark.parametrize("case", REWRITTEN, ids=lambda c: c.id)
def test_computes_the_same(case) -> None:
    wanted = forward(parse_module(case.source))
    np.testing.assert_allclose(forward(rewritten(case.source)), wanted, TOLERANCE, TOLERANCE)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("scale = 0.25", "scale = 0.2"),
        ("reshape(%wv)", "reshape(%wk)"),
    ],
)
def test_a_wrong_rewrite_would_be_seen(right: str, wrong: str) -> None:
    case = REWRITTEN[0]
    wanted, text = forward(parse_module(case.source)), print_module(rewritten(case.source))
    assert right in text
    changed = forward(parse_module(text.replace(right, wrong)))
    assert not np.allclose(changed, wanted, 1e-3)


def test_two_attention_ops_on_the_same_share_a_cache() -> None:
    module = rewritten(REWRITTEN[2].source)
    run_passes(module, [make_pass("page-attention")], given={"flat"})
    caches = [a.type for a in module.funcs["forward"].args if isinstance(a.type, CacheType)]
    assert caches == [CacheType(1, 20, 16, "f32", v_in_k=True)]


@pytest.mark.parametrize(
    ("name", "layers"),
    [("deepseek_v2", 2), ("deepseek_v3", 3), ("minicpm3", 2), ("kimi_linear", 1)],
)
def test_bytes_of_a_token_are_those_of_the_latent(name: str, layers: int) -> None:
    module, _ = captured(name)
    records = run_passes(module, pipeline())
    plan = kv_plan(module.funcs["decode"])
    assert [(c.kv_heads, c.k_dim, c.v_dim, c.v_in_k) for c in plan.caches] == [
        (1, 24 + 8, 24, True)
    ] * layers
    assert plan.bytes_per_token == layers * (24 + 8) * 4
    notes = next(r.notes for r in records if r.name == "latent-attention")
    assert notes == {"latent in the pages: 32 numbers a token, 160 as keys and values": layers}


def test_expanded_where_no_product_reads_the_matrices() -> None:
    """The reason is in the record; keys and values of all heads are in the pages."""
    case = next(c for c in GOLDEN if any("f8e4m3" in r for r in c.refused))
    module = parse_module(case.source)
    passes = [make_pass("latent-attention"), make_pass("page-attention")]
    records = run_passes(module, passes, given={"flat"})
    assert any("f8e4m3" in refused.reason for refused in records[0].refused)
    (cache,) = (a.type for a in module.funcs["forward"].args if isinstance(a.type, CacheType))
    assert cache == CacheType(4, 12, 8, "f32", window=5)
