"""ONNX models compiled to artifacts, against ONNX Runtime on the same file."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import inferc
from inferc.errors import RequestError
from inferc.metrics import relative_error
from inferc.reference_onnx import Model
from inferc.verify import verify
from tests import tiny
from tests.e2e.workshop import THREADS
from tests.frontend import onnx_foreign
from tests.frontend.onnx_models import exported
from tests.frontend.onnx_optimised import by_fusion, foreign_operators

TOLERANCE = 1e-4
LENGTH = 75  # past the windows, over three pages
CONTEXT = 256
EXPORTS = [
    ("llama", "eager", 17, "all"),
    ("qwen2", "sdpa", 17, "cache"),
    ("llama", "sdpa", 18, "ids"),
    ("llama", "sdpa", 23, "positions"),
    ("llama", "sdpa", 24, "all"),
    ("gpt2", "sdpa", 18, "positions"),
    ("gpt2", "sdpa", 23, "positions"),
    ("gpt2", "eager", 24, "ids"),
    ("gemma2", "eager", 18, "positions"),
]


def parity(model: Path, output: Path) -> list[int | None]:
    """However the prompt is cut, every bit is the same; the numbers are those of ONNX Runtime.

    Arithmetic and pages are float32, as ONNX Runtime's: 4-bit models would get int16 and bf16.
    Returns the windows of the layers.
    """
    manifest = inferc.compile(model, output, context_tokens=CONTEXT, compute="f32", kv_dtype="f32")
    ids = np.random.default_rng(3).integers(0, tiny.VOCAB, LENGTH).tolist()
    with inferc.load(output, threads=THREADS) as engine:
        ways = [engine.logits(ids, chunk) for chunk in (None, 7, 1)]
    for way in ways[1:]:
        assert np.array_equal(way.view(np.int32), ways[0].view(np.int32))
    assert relative_error(ways[0], Model(model).logits(ids)) < TOLERANCE
    return [cache.window_tokens for cache in manifest.kv.caches]


@pytest.mark.parametrize("name,attention,opset,inputs", EXPORTS)
def test_exported_by_torch(
    name: str, attention: str, opset: int, inputs: str, tmp_path: Path
) -> None:
    windows = parity(exported(name, attention, opset, inputs), tmp_path / "artifact")
    assert windows == ([8, None] if name == "gemma2" else [None, None])


@pytest.mark.parametrize("name", onnx_foreign.NAMES)
def test_foreign(name: str, tmp_path: Path) -> None:
    """Merged caches are taken out; attention, norms and 4-bit weights are com.microsoft's."""
    model = onnx_foreign.filled(name, tmp_path / name)
    windows = parity(model, tmp_path / "artifact")
    assert windows == ([8, None] if "gemma2" in name else [None, None])


def test_fused_by_onnx_runtime(tmp_path: Path) -> None:
    model = by_fusion(exported("gemma2", "eager", 17, "all"), tmp_path / "model.onnx")
    assert "SkipSimplifiedLayerNormalization" in foreign_operators(model)
    assert parity(model, tmp_path / "artifact") == [8, None]


def test_without_tokenizer(tmp_path: Path) -> None:
    model, artifact = exported("llama", "sdpa", 23), tmp_path / "artifact"
    inferc.compile(model, artifact, context_tokens=CONTEXT)
    assert not (artifact / "tokenizer.json").exists()
    with inferc.load(artifact, threads=THREADS) as engine:
        params = inferc.SamplingParams(max_tokens=5)
        (made,) = engine.generate([1, 2, 3], params)
        assert len(made.token_ids) == 5
        with pytest.raises(RequestError, match=r"no tokenizer.*token ids"):
            engine.generate("hello", params)


def test_with_tokenizer_and_verify(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(exported("llama", "sdpa", 23).parent, folder)
    tiny.save_tokenizer(folder)
    (folder / "config.json").write_text('{"max_position_embeddings": 128, "eos_token_id": 258}')
    artifact = tmp_path / "artifact"
    manifest = inferc.compile(folder, artifact)
    assert manifest.limits.context_tokens == 128
    assert 258 in manifest.tokens.eos
    found = verify(artifact, folder, tokens=40, threads=THREADS)
    assert found.passed and found.loader == "onnxruntime"
    assert (artifact / "verification.json").is_file()
