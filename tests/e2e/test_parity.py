"""Logits of compiled artifacts against transformers: twelve architectures and their options.

Prompts run past every sliding window and over several pages, in one piece, in chunks, and token by
token; the three must agree bit for bit, and with the reference to 1e-4.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import inferc
from inferc.metrics import relative_error
from inferc.runtime.artifact import read_manifest
from tests import tiny
from tests.e2e.workshop import THREADS, Workshop, ids_of, reference_logits

FLOAT32_TOLERANCE = 1e-4
BFLOAT16_FACTOR = 1.5  # how much further from float64 than transformers in bfloat16 we may be
CHUNKS = (None, 7, 1)


def logits_of(artifact: object, ids: list[int]) -> np.ndarray:
    """Our logits; however the prompt is cut, every bit must be the same."""
    with inferc.load(artifact, threads=THREADS) as engine:
        ways = [engine.logits(ids, chunk) for chunk in CHUNKS]
    for chunk, way in zip(CHUNKS, ways, strict=True):
        assert np.array_equal(way.view(np.int32), ways[0].view(np.int32)), f"chunks of {chunk}"
    return ways[0]


@pytest.mark.parametrize("name", tiny.CASES)
def test_float32(workshop: Workshop, name: str) -> None:
    ids = ids_of(name)
    artifact = workshop.artifact(name)
    found = logits_of(artifact, ids)
    assert read_manifest(artifact).kv.dtype == "f32"
    assert relative_error(found, reference_logits(name, ids)) < FLOAT32_TOLERANCE


@pytest.mark.parametrize("name", tiny.ARCHITECTURES)
def test_bfloat16(workshop: Workshop, name: str) -> None:
    """A bfloat16 checkpoint: as close to the exact result as transformers in bfloat16."""
    ids, source = ids_of(name), workshop.source(name, "bfloat16")
    exact = transformers_logits(source, ids, torch.float64)
    theirs = transformers_logits(source, ids, torch.bfloat16)
    artifact = workshop.artifact(name, "bfloat16")
    ours = logits_of(artifact, ids)
    assert read_manifest(artifact).kv.dtype == "bf16"
    assert relative_error(ours, exact) < BFLOAT16_FACTOR * relative_error(theirs, exact)


def transformers_logits(source: object, ids: list[int], dtype: torch.dtype) -> np.ndarray:
    model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, attn_implementation="eager")
    with torch.no_grad():
        out = model.eval()(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    return out.to(torch.float64).numpy()
