"""The serve and fuse passes on twelve architectures: same logits after every pass, all fused."""

from __future__ import annotations

import time

import nn_models
import numpy as np
import pytest

from inferc.ir.core import Module
from inferc.passes.check import CheckTranslation, Logits, logits, relative_error
from inferc.passes.check_inputs import PagedBatch, Prompts, RandomParams
from inferc.passes.instruments import CheckFacts, Verify
from inferc.passes.manager import run_passes
from inferc.passes.registry import parse_pipeline

SERVE = "flatten-tokens,page-attention,last-token-logits,merge-projections,split-phases"
FUSE = (
    "hoist-weights,fuse-rope-kv-append,fuse-activation,fuse-epilogue,fuse-norm-residual,"
    "fuse-elementwise"
)
PIPELINE = f"{SERVE},{FUSE},plan-kv{{page_tokens=16}}"
TOLERANCE = 1e-9  # float64 throughout; passes only reorder what is exact to rounding
GIVEN = ("normalized", "raised")


def compiled(module: Module, *instruments: object) -> Module:
    run_passes(module, parse_pipeline(PIPELINE), given=GIVEN, instruments=list(instruments))
    return module


def steps(module: Module, prompts: Prompts, plan: list[tuple[int, ...]]) -> Logits:
    """Logits of each sequence when the steps take these numbers of tokens of each."""
    batch = PagedBatch(module.funcs["prefill"], prompts, "f64")
    params = RandomParams(module, "f64")
    found: Logits = {"steps": [np.empty((0, nn_models.VOCAB)) for _ in prompts.ids]}
    for counts in plan:
        rows = [r for r, n in enumerate(counts) if n]
        new = [n for n in counts if n]
        func = module.funcs["decode" if set(new) == {1} else "prefill"]
        made, *caches = nn_models.run64(func, batch.inputs(func, rows, new), params)
        batch.commit(rows, new, caches)
        for r, part in zip(rows, np.split(made, np.cumsum(new)[:-1]), strict=True):
            found["steps"][r] = np.concatenate([found["steps"][r], part])
    return found


@pytest.mark.parametrize("name", nn_models.MODELS)
def test_every_pass_keeps_the_logits(name: str) -> None:
    check = CheckTranslation(precision="f64")
    module = compiled(nn_models.build(name), Verify(), CheckFacts(), check)
    assert set(module.funcs) >= {"prefill", "decode"}
    assert check.worst < TOLERANCE
    assert len(check.results) >= 8  # a check that never ran is no check


@pytest.mark.parametrize("name", ["llama", "gemma3", "cohere2", "gpt2", "olmo2"])
def test_any_schedule_gives_the_same_logits(name: str) -> None:
    source = nn_models.build(name)
    rng = np.random.default_rng(1)
    prompts = Prompts("ragged", tuple(rng.integers(0, nn_models.VOCAB, n) for n in (21, 3, 18)))
    expected = logits(source, prompts, RandomParams(source, "f64"), "f64")["forward"]
    module = compiled(source)
    plans = [
        [(4, 0, 0), (1, 1, 7), (1, 1, 1), (15, 1, 0), (0, 0, 10)],
        [tuple(int(i < n) for n in (21, 3, 18)) for i in range(21)],
    ]
    for plan in plans:
        found = steps(module, prompts, plan)["steps"]
        assert max(relative_error(f, e) for f, e in zip(found, expected, strict=True)) < TOLERANCE


KINDS = {
    "llama": "linear rope_append attention linear norm glu_linear linear norm",
    "gemma3": "linear rope_append attention linear norm glu_linear linear norm",
    "gpt2": "linear rope_append attention linear norm linear linear norm",
    "cohere2": "linear rope_append attention linear glu_linear linear norm",
    "olmo2": "linear linear linear norm norm rope_append attention linear norm glu_linear linear",
}


@pytest.mark.parametrize("name", KINDS)
def test_groups_of_a_layer(name: str) -> None:
    module = compiled(nn_models.build(name, layers=2))
    kinds = [str(op.attrs["kind"]) for op in module.funcs["decode"].ops if op.body is not None]
    layer = KINDS[name].split()
    starts = [i for i in range(len(kinds)) if kinds[i : i + len(layer)] == layer]
    assert starts, kinds


def test_run_time_is_nearly_linear_in_layers() -> None:
    times = []
    for layers in (20, 80):
        module = nn_models.build("gemma3", layers=layers)
        start = time.process_time()
        compiled(module)
        times.append(time.process_time() - start)
    assert times[1] < 10 * times[0], times  # 4 times the ops; quadratic would be 16
