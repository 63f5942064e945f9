"""Two real GGUF files end to end: logits and greedy tokens of transformers, sensible text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import inferc
from inferc.cli.main import main
from inferc.codegen.targets import parse_target
from tests.e2e.workshop import Workshop
from tests.models import gemma3_gguf, smollm2_gguf

pytestmark = pytest.mark.usefixtures("references")
TOKENS = 120


def check(artifact: Path, source: Path, *options: str) -> None:
    assert main(["verify", str(artifact), str(source), *options]) == 0
    result = json.loads((artifact / "verification.json").read_text())
    assert result["compute"] == "f32" and result["tolerance"]["max"] == 1e-4
    assert result["loader"] == "transformers" and result["notes"] == []
    assert result["greedy"] == {"tokens": 64, "equal_tokens": 64, "margin": None}
    for way in result["ways"]:
        assert way["bit_equal"] and way["distance"]["top1_agreement"] == 1.0


def test_smollm2(smollm2_artifact: Path) -> None:
    check(smollm2_artifact, smollm2_gguf(), "--tokens", str(TOKENS))


def test_smollm2_by_default(workshop: Workshop) -> None:
    """Rounded activations (on x86) and pages of bf16: within the table of tolerances."""
    artifact = workshop.real("smollm2-default", smollm2_gguf())
    assert main(["verify", str(artifact), str(smollm2_gguf()), "--tokens", str(TOKENS)]) == 0
    result = json.loads((artifact / "verification.json").read_text())
    wanted = parse_target("cpu:native").has_int16_dots
    assert result["compute"] == ("int16" if wanted else "f32") and result["kv_dtype"] == "bf16"
    assert all(way["bit_equal"] for way in result["ways"])


def test_gemma3(gemma3_artifact: Path) -> None:
    """Past the window of 512 tokens."""
    check(gemma3_artifact, gemma3_gguf())


def test_smollm2_answers(smollm2_artifact: Path) -> None:
    question = [{"role": "user", "content": "What is the capital of France?"}]
    with inferc.load(smollm2_artifact) as engine:
        answer = engine.chat(question, max_tokens=40, temperature=0.0)[0]
    assert "Paris" in answer.text
    assert answer.finish_reason == "stop"


def test_gemma3_continues(gemma3_artifact: Path) -> None:
    with inferc.load(gemma3_artifact) as engine:
        text = engine.generate("Monday, Tuesday, Wednesday,", max_tokens=8, temperature=0.0)[0].text
    assert text.startswith(" Thursday, Friday, Saturday, Sunday")
