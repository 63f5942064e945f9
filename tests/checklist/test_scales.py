"""Soft-caps that are zero (line 6)."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferc.errors import CompileError
from inferc.frontend import capture_torch
from inferc.frontend.capture_request import CaptureRequest
from inferc.frontend.gguf import open_gguf
from tests import tiny
from tests.frontend import gguf_models


def test_a_soft_cap_of_zero() -> None:
    """Is it off, or are all scores 0, as transformers computes them? It is not guessed."""
    config = tiny.config("gemma2") | {"attn_logit_softcapping": 0.0}
    with pytest.raises(CompileError, match=r"soft-cap of 0.*null in config.json for none"):
        capture_torch.capture(CaptureRequest(config))


def test_a_soft_cap_of_zero_in_a_gguf_file_is_none(tmp_path: Path) -> None:
    caps = {"attn_logit_softcapping": 0.0, "final_logit_softcapping": 0.0}
    config = open_gguf(gguf_models.write(tmp_path / "m.gguf", "gemma2", **caps)).config
    assert [config[name] for name in caps] == [None, None]
