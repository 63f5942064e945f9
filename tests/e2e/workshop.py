"""Tiny models on disk and compiled, made once a session; kernels are cached between sessions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import inferc
from tests import tiny
from tests.frontend.captured import warm

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "inferc"
LENGTH = 75  # past every window of the tiny models, over three pages
THREADS = 2


class Workshop:
    """Sources and artifacts under one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.artifact = cache(self._artifact)
        self.source = cache(self._source)

    def _source(self, name: str, dtype: str = "float32") -> Path:
        """A tiny case as a Hugging Face directory; its capture is put into the cache."""
        folder = tiny.save(name, self.folder / "sources" / dtype / name, dtype=dtype)
        warm(folder, tiny.case_of(name).context_tokens, CACHE)
        return folder

    def _artifact(self, name: str, dtype: str = "float32", **options: Any) -> Path:
        """A tiny case, compiled."""
        label = "-".join([name, dtype, *(f"{k}={v}" for k, v in sorted(options.items()))])
        output = self.folder / "artifacts" / label
        context = tiny.case_of(name).context_tokens
        inferc.compile(self.source(name, dtype), output, context_tokens=context, **options)
        return output

    def real(self, label: str, source: Path, **options: Any) -> Path:
        """A real model, compiled."""
        output = self.folder / "artifacts" / label
        inferc.compile(source, output, **options)
        return output


def ids_of(name: str, length: int | None = None) -> list[int]:
    """A random prompt, as long as the case allows."""
    longest = tiny.case_of(name).context_tokens or LENGTH
    return [int(t) for t in tiny.ids(name, 1, min(length or LENGTH, longest))[0]]


def reference_logits(name: str, ids: list[int]) -> np.ndarray:
    """Transformers, eager, float32: `[tokens, vocab]`."""
    return tiny.logits(name, np.array([ids]))[0]


@contextmanager
def kernel_cache() -> Iterator[None]:
    """Let everything that compiles use the cache of the tests."""
    before = os.environ.get("INFERC_CACHE")
    os.environ["INFERC_CACHE"] = str(CACHE)
    try:
        yield
    finally:
        if before is None:
            del os.environ["INFERC_CACHE"]
        else:
            os.environ["INFERC_CACHE"] = before
