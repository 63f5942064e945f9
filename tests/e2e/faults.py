"""Faults that a compiler might have, planted into the imported graph before anything is lowered.

`FAULTS` names them; each is an edit of the text of a tiny model's graph, or of SmolLM2's, whose
file holds the rows of queries and keys in another order than transformers does.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import inferc
from inferc import driver
from inferc.frontend.importer import ImportedModel
from inferc.ir.parse import parse_module
from inferc.ir.text import print_module

REAL = "smollm2"


@dataclass(frozen=True)
class Fault:
    """What is edited in the graph of which model; the pattern has to be found."""

    model: str
    pattern: str
    change: str | Callable[[re.Match[str]], str]


def _values(name: str) -> str:
    return rf"(%{name}\S* = core.constant\(\) \{{values = )\(([^)]*)\)"


def _without_bias_of_one_expert(match: re.Match[str]) -> str:
    """The biases of the down projections with that of the third expert set to zero."""
    bias = match["bias"]
    return (
        "  %kept = core.constant() {values = (1.0, 1.0, 0.0, 1.0), shape = (4, 1),"
        f' dtype = "f32"}} : f32[4, 1] loc("planted")\n'
        f'  %three = core.mul({bias}, %kept) : f32[4, 64] loc("planted")\n'
        f"{match['head']}, %three)"
    )


FAULTS: dict[str, Fault] = {
    "a dropped soft-cap": Fault("gemma2", r", softcap = [\d.]+", ""),
    "swapped q/k permutation": Fault(
        REAL,
        r"\{perm = \(0, 2, 1, 3\)\} : (\w+)\[(\d+), 2, (\d+), ",
        r"{perm = (0, 1, 2, 3)} : \1[\2, \3, 2, ",
    ),
    # Layers with a window have a base of their own (rope_local_base_freq).
    "rope theta from the wrong field": Fault(
        "gemma3",
        r"(core.mul\(%cast\w*, )%sliding_attention_inv_freq",
        r"\1%full_attention_inv_freq",
    ),
    "missing embedding scale": Fault("gemma2", _values("embed_scale"), r"\1(1.0,)"),
    "window ignored": Fault("gemma2", r" \{window = \d+\}", ""),
    "one expert bias unused": Fault(
        "gpt_oss", r"(?m)(?P<head>^  %experts = .*), (?P<bias>%experts_down_proj_bias)\)",
        _without_bias_of_one_expert,
    ),
    "a residual multiplier of 1": Fault(
        "granite", r"(core.constant\(\) \{values = )\(0.22,\)", r"\1(1.0,)"
    ),
}  # fmt: skip


def compile_with(
    fault: str, source: Path, output: Path, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> Path:
    """Compile a model whose imported graph has been damaged."""
    real = driver.import_model
    planted = FAULTS[fault]

    def damaged(*arguments: Any) -> ImportedModel:
        model = real(*arguments)
        text = print_module(model.module, locations=True)
        text, count = re.subn(planted.pattern, planted.change, text)
        assert count, f"nothing to damage: {planted.pattern}"
        return replace(model, module=parse_module(text))

    monkeypatch.setattr(driver, "import_model", damaged)
    inferc.compile(source, output, **options)
    return output
