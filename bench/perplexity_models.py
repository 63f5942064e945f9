"""The models that perplexity is measured on, and the ways they are compiled."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from pathlib import Path

from bench.peers_cpu.gguf_tools import convert
from inferc.options import CompileOptions

EXACT, ROUNDED = 0.001, 0.005
"""Largest relative difference from the reference: in general, and with int8 activations."""


@dataclass(frozen=True)
class Case:
    """One artifact. `options` are options of the compilation beyond the defaults."""

    model: str
    weights: str
    options: tuple[tuple[str, str], ...] = ()

    @property
    def limit(self) -> float:
        """Largest relative difference in perplexity."""
        return ROUNDED if "int8" in dict(self.options).values() else EXACT

    @property
    def label(self) -> str:
        """The options as a user writes them."""
        named = (f"--{name.replace('_', '-')} {value}" for name, value in self.options)
        return " ".join(named) or "defaults"

    @property
    def known(self) -> bool:
        """Whether this compiler has these options at all."""
        return {name for name, _ in self.options} <= {f.name for f in fields(CompileOptions)}


def _case(model: str, weights: str, **options: str) -> Case:
    return Case(model, weights, tuple(sorted(options.items())))


CASES = (
    *(
        _case("SmolLM2-135M", "Q4_1", **options)
        for options in (
            {},
            {"compute": "f32", "kv_dtype": "f32"},
            {"kv_dtype": "f16"},
            {"kv_dtype": "i8"},
            {"compute": "int8"},
            {"prefill_precision": "int8"},
        )
    ),
    _case("SmolLM2-135M", "Q8_0"),
    _case("SmolLM2-135M", "Q8_0", compute="f32", kv_dtype="f32"),
    _case("SmolLM2-135M", "Q8_0", compute="int8"),
    _case("SmolLM2-135M", "Q8_0", prefill_precision="int8"),
    _case("SmolLM2-135M", "bf16"),
    _case("SmolLM2-135M", "bf16", kv_dtype="f32"),
    _case("Gemma 3 270M", "Q4_K_M"),
    _case("Gemma 3 270M", "Q4_K_M", compute="f32", kv_dtype="f32"),
    _case("Gemma 3 270M", "Q4_K_M", compute="int8"),
    _case("Gemma 3 270M", "Q4_K_M", prefill_precision="int8"),
)


def source(case: Case, cache: Path) -> Path:
    """The model's file; Q8_0 and bf16 of SmolLM2 are made once from its Q4_1 file."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    from find_model import gemma3, smollm2

    if case.model.startswith("Gemma"):
        return Path(gemma3())
    if case.weights == "Q4_1":
        return Path(smollm2())
    target = cache / f"smollm2-{case.weights.lower()}.gguf"
    if not target.exists():
        convert(Path(smollm2()), target, case.weights.upper())
    return target
