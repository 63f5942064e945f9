"""Quantised checkpoints compiled: logits against transformers on the values that the codes mean."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import inferc
from inferc import report_file
from inferc.codegen.kernel import KernelOptions
from inferc.codegen.kernels.linear import math_type
from inferc.codegen.targets import parse_target
from inferc.metrics import relative_error
from inferc.runtime.artifact import read_manifest
from inferc.tolerance import tolerance
from inferc.verify import verify
from tests import quantised_models
from tests.e2e.test_parity import FLOAT32_TOLERANCE, logits_of
from tests.e2e.workshop import CACHE, LENGTH
from tests.frontend.captured import warm

CASES = (
    ("llama", "gptq"), ("llama", "gptq-head"), ("llama", "gptq-8"), ("llama", "gptq-act-order"),
    ("llama", "gptq-orders"), ("llama", "awq"), ("llama", "pack"), ("llama", "pack-8"),
    ("llama", "nf4"), ("llama", "fp4"), ("llama", "fp8-block"), ("llama", "f8-tensor"),
    ("phi3", "f8-channel"), ("qwen2", "int8"), ("qwen2", "bnb-int8"), ("mixtral", "gptq"),
    ("mixtral", "f8-tensor"), ("gpt_oss", "mxfp4"),
)  # fmt: skip
COARSEST = tolerance("int16", "f32").max
IDS = [int(t) for t in np.random.default_rng(1).integers(0, 256, LENGTH)]


def compiled(family: str, method: str, folder: Path, **options: object) -> tuple[Path, Path, Path]:
    """The source, the plain model with the same values, and the artifact, exact by default."""
    stored, plain = quantised_models.save(family, method, folder)
    warm(stored, None, CACHE)
    output = folder / "artifact"
    inferc.compile(stored, output, **{"compute": "f32", "kv_dtype": "f32", **options})
    return stored, plain, output


def reference(folder: Path) -> np.ndarray:
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        return model.eval()(input_ids=torch.tensor([IDS]), use_cache=False).logits[0].numpy()


@pytest.mark.parametrize(("family", "method"), CASES)
def test_logits(family: str, method: str, tmp_path: Path) -> None:
    _, plain, artifact = compiled(family, method, tmp_path)
    assert relative_error(logits_of(artifact, IDS), reference(plain)) < FLOAT32_TOLERANCE


@pytest.mark.parametrize(
    ("family", "method"),
    [("llama", "gptq"), ("llama", "pack-8"), ("qwen2", "int8"), ("mixtral", "gptq")],
)
def test_logits_of_int16(family: str, method: str, tmp_path: Path) -> None:
    """What x86 does by default: activations are rounded to 16 bits, alike in chunks of any size."""
    _, plain, artifact = compiled(family, method, tmp_path, compute="int16")
    assert 1e-6 < relative_error(logits_of(artifact, IDS), reference(plain)) < COARSEST


@pytest.mark.parametrize(
    ("target", "arithmetic"), [("cpu:x86-64-v3", "int16"), ("cpu:x86-64-v4", "int16"),
                               ("cpu:armv8-a", "f32"), ("cpu:portable", "f32")],
)  # fmt: skip
def test_default_arithmetic(target: str, arithmetic: str) -> None:
    options = KernelOptions(parse_target(target))
    assert math_type("q4_1", options) == f"Math{arithmetic.capitalize()}"
    assert math_type("nf4_g64", options) == "MathF32"


def test_weights_stay_small(tmp_path: Path) -> None:
    """No quantised weight becomes floats on the way: bytes of the file, but for its overheads."""
    stored, _, artifact = compiled("llama", "gptq-act-order", tmp_path)
    packed = sum(f.stat().st_size for f in (artifact / "weights").iterdir())
    assert packed < 1.1 * (stored / "model.safetensors").stat().st_size


def test_verify(tmp_path: Path) -> None:
    stored, _, artifact = compiled("llama", "gptq-act-order", tmp_path)
    result = verify(artifact, stored)
    assert result.passed
    assert any("dequantised" in note for note in result.notes)


def test_verify_knows_the_arithmetic_of_experts(tmp_path: Path) -> None:
    """Only the experts are integers here: their rounding is what counts."""
    stored, _, artifact = compiled("gpt_oss", "mxfp4", tmp_path, compute="int8")
    result = verify(artifact, stored)
    assert result.compute == "int8" and result.passed


def test_prefill_in_int8(tmp_path: Path) -> None:
    """Prompts are rounded, alike in one piece and in chunks; decode is exact."""
    stored, _, artifact = compiled("llama", "gptq", tmp_path, prefill_precision="int8")
    result = verify(artifact, stored)
    assert result.compute == "int8" and result.passed
    whole, chunks, decode = result.ways
    assert chunks.bit_equal and not decode.bit_equal
    exact = tolerance("f32", "f32")
    assert exact.admits(decode.distance) and not exact.admits(whole.distance)
    phases = report_file.read(artifact)["phases"]
    named = {name: {k["arithmetic"] for k in phase["kernels"]} for name, phase in phases.items()}
    assert "int8" in named["prefill"] and "int8" not in named["decode"]


def test_notes_are_told(tmp_path: Path) -> None:
    told: list[str] = []
    stored, _ = quantised_models.save("llama", "bnb-int8", tmp_path)
    warm(stored, None, CACHE)
    inferc.compile(
        stored, tmp_path / "artifact",
        progress=lambda event: told.append(event.detail) if event.stage == "note" else None,
    )  # fmt: skip
    assert len(told) == 1
    assert "stay floating-point" in told[0]


def test_the_latent_is_kept_where_its_matrices_are_blocks(tmp_path: Path) -> None:
    """The product that is absorbed into the query reads the blocks as they are stored."""
    _, plain, artifact = compiled("deepseek_v3", "fp8-block", tmp_path)
    caches = read_manifest(artifact).kv.caches
    assert all(cache.v_in_k and cache.kv_heads == 1 for cache in caches)
    dtypes = {t.dtype for t in read_manifest(artifact).weights.tensors if "kv_b_proj" in t.name}
    assert dtypes == {"f8_g128"}
    assert relative_error(logits_of(artifact, IDS), reference(plain)) < FLOAT32_TOLERANCE
