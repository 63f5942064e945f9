"""Captured mixtures through all passes: one group a router, one an experts op, no other choice."""

from __future__ import annotations

from collections import Counter

import pytest

from inferc.passes.instruments import CheckFacts, Verify
from inferc.passes.manager import run_passes
from inferc.passes.pipeline import PipelineOptions, pipeline
from tests.frontend.captured import captured
from tests.tiny_experts import EXPERT_CASES

SELECTION = {"core.topk", "core.take_along", "core.put_along"}


@pytest.mark.parametrize("name", EXPERT_CASES)
def test_groups_of_a_mixture(name: str) -> None:
    module, _ = captured(name)
    mixtures = sum(op.name == "nn.experts" for op in module.funcs["forward"].ops)
    assert mixtures > 0
    passes = pipeline(PipelineOptions(context_tokens=64))
    run_passes(module, passes, instruments=[Verify(), CheckFacts()])
    for phase in ("prefill", "decode"):
        groups = [op for op in module.funcs[phase].ops if op.body is not None]
        kinds = Counter(str(op.attrs["kind"]) for op in groups)
        assert kinds["experts"] == kinds["routing"] == mixtures
        for op in groups:
            choosing = {inner.name for inner in op.body.ops} & SELECTION
            assert not choosing or op.attrs["kind"] == "routing"
