"""Fixtures of the end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import inferc.verify
from inferc.reference import Reference, ReferenceRequest, reference
from tests.e2e.workshop import Workshop, kernel_cache
from tests.models import gemma3_gguf, smollm2_gguf


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    with kernel_cache():
        yield Workshop(tmp_path_factory.mktemp("e2e"))


@pytest.fixture(autouse=True)
def _cache(workshop: Workshop) -> None:
    """Every test of this folder uses the kernel cache, also those that start a process."""


@pytest.fixture(scope="session")
def smollm2_artifact(workshop: Workshop) -> Path:
    return workshop.real("smollm2", smollm2_gguf(), compute="f32", kv_dtype="f32")


@pytest.fixture(scope="session")
def gemma3_artifact(workshop: Workshop) -> Path:
    return workshop.real("gemma3-270m", gemma3_gguf(), compute="f32", kv_dtype="f32")


class KnownReferences:
    """`reference`, computed once for each request of a session: the process behind it is slow."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack
        self.known: dict[str, Reference] = {}

    @contextmanager
    def __call__(self, request: ReferenceRequest) -> Iterator[Reference]:
        key = request.to_json()
        if key not in self.known:
            self.known[key] = self.stack.enter_context(reference(request))
        yield self.known[key]


@pytest.fixture(scope="session")
def known_references() -> Iterator[KnownReferences]:
    with ExitStack() as stack:
        yield KnownReferences(stack)


@pytest.fixture
def references(known_references: KnownReferences, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `verify` take references that this session has computed before."""
    monkeypatch.setattr(inferc.verify, "reference", known_references)
