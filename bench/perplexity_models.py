"""The models that perplexity is measured on, and the ways they are compiled."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

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
            {"kv_dtype": "f32"},
            {"kv_dtype": "f16"},
            {"kv_dtype": "i8"},
            {"compute": "int8"},
            {"prefill_precision": "int8"},
        )
    ),
    _case("SmolLM2-135M", "Q8_0"),
    _case("SmolLM2-135M", "Q8_0", kv_dtype="f32"),
    _case("SmolLM2-135M", "Q8_0", compute="int8"),
    _case("SmolLM2-135M", "Q8_0", prefill_precision="int8"),
    _case("SmolLM2-135M", "bf16"),
    _case("SmolLM2-135M", "bf16", kv_dtype="f32"),
    _case("Gemma 3 270M", "Q4_K_M"),
    _case("Gemma 3 270M", "Q4_K_M", kv_dtype="f32"),
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


def convert(stored: Path, target: Path, kind: str) -> None:
    """The same model with every matrix as `kind` (a GGML type), from its dequantised values."""
    import gguf

    reader = gguf.GGUFReader(stored)
    partial = target.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "general.file_type"):
            continue
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), field.types[0], inner)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, *_converted(tensor, gguf.GGMLQuantizationType[kind]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(target)


def _converted(tensor: Any, kind: Any) -> tuple[Any, Any, Any]:
    """Values, shape (that of the values) and type for `add_tensor`; vectors stay float32."""
    import gguf

    values = gguf.dequantize(tensor.data, tensor.tensor_type).astype("float32")
    if values.ndim == 1:
        return values, None, None
    return gguf.quantize(values, kind), None, kind
