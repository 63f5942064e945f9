"""Faults that a compiler might have, planted into the imported graph before anything is lowered."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import inferc
from inferc import driver
from inferc.frontend.importer import ImportedModel
from inferc.ir.parse import parse_module
from inferc.ir.text import print_module

Edit = tuple[str, str | Callable[[re.Match[str]], str]]


def _other_theta(match: re.Match[str]) -> str:
    """Rotary frequencies of theta 500,000 instead of 10,000."""
    count = len(match[2].split(","))
    values = ", ".join(repr(500_000.0 ** (-i / count)) for i in range(count))
    return f"{match[1]}({values})"


_VALUES = r"(%{}\S* = core.constant\(\) \{{values = )\(([^)]*)\)"
FAULTS: dict[str, Edit] = {
    "soft-cap dropped": (r", softcap = [\d.]+", ""),
    "window ignored": (r" \{window = \d+\}", ""),
    "wrong rope theta": (_VALUES.format("inv_freq"), _other_theta),
    "embedding not scaled": (_VALUES.format("embed_scale"), r"\1(1.0,)"),
    "rows of q and k stay as llama.cpp orders them": (
        r"\{perm = \(0, 2, 1, 3\)\} : (\w+)\[(\d+), 2, (\d+), ",
        r"{perm = (0, 1, 2, 3)} : \1[\2, \3, 2, ",
    ),
}  # fmt: skip


def compile_with(
    fault: str, source: Path, output: Path, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> Path:
    """Compile a model whose imported graph has been damaged."""
    real = driver.import_model
    pattern, changed = FAULTS[fault]

    def damaged(*arguments: Any) -> ImportedModel:
        model = real(*arguments)
        text, count = re.subn(pattern, changed, print_module(model.module, locations=True))
        assert count, f"nothing to damage: {pattern}"
        return replace(model, module=parse_module(text))

    monkeypatch.setattr(driver, "import_model", damaged)
    inferc.compile(source, output, **options)
    return output
