"""Latent attention compiled: logits of transformers, the latent only in the pages.

`artifact_logits` runs a prompt over three pages in one piece, in chunks and token by token, and
asks for the same bits.
"""

from __future__ import annotations

import numpy as np
import pytest

from inferc.metrics import relative_error
from inferc.runtime.artifact import read_manifest
from tests.e2e.workshop import Workshop, ids_of, reference_logits
from tests.tiny_latent import LATENT_CASES
from tools.survey_stages import FLOAT32_TOLERANCE, Examination, artifact_logits

LATENT, EXPANDED = 40 + 12, 6 * (20 + 12 + 28)  # numbers a token and layer


@pytest.mark.parametrize("name", LATENT_CASES)
def test_logits_and_bytes_of_a_token(workshop: Workshop, name: str) -> None:
    artifact, ids = workshop.artifact(name), ids_of(name)
    error = relative_error(artifact_logits(artifact, ids), reference_logits(name, ids))
    assert error < FLOAT32_TOLERANCE
    kv = read_manifest(artifact).kv
    kept = name != "latent-wide"
    assert all(cache.v_in_k == kept for cache in kv.caches)
    assert kv.bytes_per_token == len(kv.caches) * 4 * (LATENT if kept else EXPANDED)


def test_narrow_pages(workshop: Workshop) -> None:
    """Keys rounded to bfloat16 change little, and halve the bytes."""
    name = "latent-halves"
    exact = workshop.artifact(name)
    artifact, ids = workshop.artifact(name, kv_dtype="bf16", page_tokens=16), ids_of(name)
    error = relative_error(artifact_logits(artifact, ids), artifact_logits(exact, ids))
    assert 1e-6 < error < 2e-2
    assert read_manifest(artifact).kv.bytes_per_token * 2 == read_manifest(exact).kv.bytes_per_token


def test_without_tvm_and_in_the_other_phase(workshop: Workshop) -> None:
    name = "latent-whole-query"
    plain, ids = workshop.artifact(name, tvm=False), ids_of(name)
    found, known = artifact_logits(plain, ids), artifact_logits(workshop.artifact(name), ids)
    np.testing.assert_allclose(found, known, 1e-4, 1e-5)


def test_bfloat16_weights(workshop: Workshop) -> None:
    record = Examination("minicpm3").run(workshop, ("bfloat16",))  # dense: exact in float64
    assert not record.refusal
    assert record.bfloat16 is not None
    assert record.bfloat16 < 1.5
