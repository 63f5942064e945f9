"""The whole pipeline on captured models: stages, facts, logits, bytes."""

from __future__ import annotations

import pytest

from inferc.ir.cost import Workload, func_cost, must_move, traffic_ratio
from inferc.ir.parse import parse_module
from inferc.ir.text import print_module, structural_hash
from inferc.passes.check import CheckTranslation
from inferc.passes.instruments import CheckFacts, StageTexts, Verify
from inferc.passes.manager import run_passes
from inferc.passes.pipeline import PipelineOptions, phase_ends, pipeline
from tests.frontend.captured import captured

OPTIONS = PipelineOptions(step_tokens=64, sequences=8, page_tokens=16, kv_dtype="bf16")
ENDS = {index: phase.stage for index, phase in phase_ends().items()}


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "phi3", "cohere2"])
def test_every_stage_is_legal_and_computes_the_same(name: str) -> None:
    module, check, texts = captured(name)[0], CheckTranslation(), StageTexts(ENDS)
    instruments = [Verify(stages=ENDS), CheckFacts(), check, texts]
    records = run_passes(module, pipeline(OPTIONS), instruments=instruments)
    assert len(check.results) == sum(r.changed for r in records) >= 10
    for text in texts.texts.values():
        assert print_module(parse_module(text)) == text


def test_decode_moves_little_more_than_it_must() -> None:
    module = captured("llama")[0]
    before = module.funcs["forward"]
    single = Workload.prefill(1).bindings()
    ratio_before = traffic_ratio(before, single)
    run_passes(module, pipeline(OPTIONS))
    decode, step = module.funcs["decode"], Workload.decode(1, 40).bindings()
    assert 1 <= traffic_ratio(decode, step) < ratio_before
    moved, least = func_cost(decode).at(step), must_move(decode).at(step)
    assert moved.flops == least.flops
    # What is moved beyond the least is activations between kernels.
    weights = sum(op.result.type.nbytes for op in decode.ops if op.name == "param")  # type: ignore[union-attr, misc]
    assert moved.bytes_moved - least.bytes_moved < weights  # type: ignore[operator]


def test_the_pipeline_is_deterministic() -> None:
    texts = []
    for _ in range(2):
        module = captured("gemma3")[0]
        run_passes(module, pipeline(OPTIONS))
        texts.append((print_module(module, locations=True), structural_hash(module)))
    assert texts[0] == texts[1]
