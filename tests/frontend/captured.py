"""Captures of the tiny models, made in this process and once a session (a child each is slow)."""

from __future__ import annotations

import contextlib
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from inferc.frontend import capture_torch
from inferc.frontend.capture import FACTS_FILE, GRAPH_FILE, cached_folder
from inferc.frontend.capture_request import CaptureFacts, CaptureRequest
from inferc.frontend.hf import open_hf
from inferc.ir import interp
from inferc.ir.core import Func, Module
from inferc.ir.parse import parse_module
from tests import tiny


@cache
def _capture(request_json: str) -> tuple[str, CaptureFacts]:
    return capture_torch.capture(CaptureRequest.from_json(request_json))


def captured(name: str) -> tuple[Module, CaptureFacts]:
    """A tiny case as IR (a fresh module each time) and its facts."""
    request = CaptureRequest(tiny.config(name), tiny.case_of(name).context_tokens)
    text, facts = _capture(request.to_json())
    return parse_module(text), facts


def warm(folder: Path, context_tokens: int | None, cache_folder: Path) -> None:
    """Put the capture of a saved model into a cache, so that importing it starts no child."""
    source = open_hf(folder)
    request = CaptureRequest(source.config, context_tokens, source.checkpoint_keys)
    target = cached_folder(request, cache_folder)
    if not target.is_dir():
        text, facts = _capture(request.to_json())
        target.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=target.parent))
        (made / GRAPH_FILE).write_text(text, encoding="utf-8")
        (made / FACTS_FILE).write_text(facts.to_json(), encoding="utf-8")
        with contextlib.suppress(OSError):  # another process was faster
            made.rename(target)


def run_forward(func: Func, params: interp.Params, ids: np.ndarray) -> np.ndarray:
    """Logits of `@forward` by the interpreter."""
    positions = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
    return interp.run(func, [ids, positions], params)[0]


def relative_error(found: np.ndarray, wanted: np.ndarray) -> float:
    """Norm of the difference over the norm of the reference."""
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))
