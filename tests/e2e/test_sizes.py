"""Sizes that others could not take: odd head sizes, vocabularies larger than the tokenizer's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import inferc
from inferc.metrics import relative_error
from tests import tiny
from tests.e2e.workshop import CACHE, THREADS, Workshop, ids_of, reference_logits
from tests.frontend.captured import warm
from tests.tiny_checklist import HEAD_SIZES, VOCABULARIES

TOLERANCE = 1e-4
SAMPLING = (
    {"temperature": 0.0},
    {"temperature": 3.0, "seed": 1},
    {"top_k": 50, "top_p": 0.9, "seed": 2},
)


@pytest.mark.parametrize("size", HEAD_SIZES)
def test_head_sizes(size: int, workshop: Workshop) -> None:
    """Heads of `size`, though the hidden state has 64 columns for two of them."""
    name = f"head_dim {size}"
    ids = ids_of(name)
    with inferc.load(workshop.artifact(name), threads=THREADS) as engine:
        ways = [engine.logits(ids, chunk) for chunk in (None, 7, 1)]
    for way in ways[1:]:
        assert np.array_equal(way.view(np.int32), ways[0].view(np.int32))
    assert relative_error(ways[0], reference_logits(name, ids)) < TOLERANCE


def favour_padding(folder: Path, known: int) -> None:
    """Give ids that no token has by far the largest logits."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    head = tensors["lm_head.weight"]
    head[known:] *= 50
    save_file(tensors, file)


@pytest.mark.parametrize("size", VOCABULARIES)
def test_padded_ids_never_come_out(size: int, tmp_path: Path) -> None:
    """Rows of the head beyond the tokenizer's ids are computed, and never sampled."""
    folder = tiny.save(f"vocab_size {size}", tmp_path / "model")
    known = len(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]) + 3
    favour_padding(folder, known)
    warm(folder, None, CACHE)
    inferc.compile(folder, tmp_path / "artifact")
    with inferc.load(tmp_path / "artifact", threads=THREADS) as engine:
        logits = engine.logits([1, 2, 3])
        assert logits.shape == (3, size)
        assert logits.argmax(-1).min() >= known  # they would win
        for options in SAMPLING:
            (made,) = engine.generate([1, 2, 3], max_tokens=12, ignore_eos=True, **options)
            assert max(made.token_ids) < known
