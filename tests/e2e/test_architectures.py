"""Architectures beyond the twelve of `test_parity`, as `tools.survey` examines them.

A few are compiled and run, chosen for what no other test compiles; more go through all passes and
are interpreted. The whole table is `make support`.
"""

from __future__ import annotations

import pytest

from tests.e2e.workshop import Workshop
from tools.survey_stages import Examination

COMPILED = {
    "cohere": "layer norm of heads",
    "flint": "sinks in windows",
    "gemma4_text": "head sizes by layer, keys shared between layers, inputs of each layer",
    "gpt_neox": "queries, keys and values taking turns; four rotary dimensions",
    "mpt": "ALiBi",
    "nanochat": "rotary embedding in the other direction",
    "opt": "positions counted from two",
    "youtu": "latent attention",
}
INTERPRETED = (
    "apertus", "bert", "biogpt", "bloom", "deepseek_v2", "diffllama", "falcon", "gpt_bigcode",
    "gpt_neo", "gpt_neox_japanese", "granite_swa", "megatron-bert", "minicpm3", "mvp", "nemotron",
    "olmo", "persimmon", "stablelm", "trocr",
)  # fmt: skip


@pytest.mark.parametrize("name", COMPILED)
def test_compiled(workshop: Workshop, name: str) -> None:
    record = Examination(name).run(workshop, ("float32",))
    assert not record.refusal
    assert record.float32 is not None


@pytest.mark.parametrize("name", INTERPRETED)
def test_interpreted(name: str) -> None:
    record = Examination(name).run()
    assert not record.refusal
    assert record.raises


def test_what_mixes_positions_is_refused_by_op_and_module() -> None:
    """XLM counts the tokens of the whole row, those that come later too."""
    record = Examination("xlm").run()
    assert "core.sum" in record.refusal and "in transformer mixes positions" in record.refusal
    assert not record.raises
