"""Models with recurrent layers: parity, and independence of how and beside whom a request runs."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

import inferc
from inferc import Engine, SamplingParams
from inferc.metrics import relative_error
from inferc.runtime.artifact import read_manifest
from tests import recurrent, tiny
from tests.e2e.workshop import LENGTH, THREADS

TOLERANCE = 1e-4
CHUNKS = (None, 7, 1)
SCARCE_PAGES = 5
SERVED = ("lfm2", "falcon_h1", "jamba", "mamba2", "qwen3_next")


class RecurrentWorkshop:
    """Artifacts by name, made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def artifact(self, name: str, **options: object) -> Path:
        label = "-".join([name, *(f"{k}={v}" for k, v in sorted(options.items()))])
        output = self.folder / "artifacts" / label
        if not output.exists():
            source = self.folder / "sources" / name
            if not source.exists():
                recurrent.save(name, source)
            inferc.compile(source, output, context_tokens=recurrent.CONTEXT, **options)
        return output


@pytest.fixture(scope="module")
def recurrents(workshop: object, tmp_path_factory: pytest.TempPathFactory) -> RecurrentWorkshop:
    return RecurrentWorkshop(tmp_path_factory.mktemp("recurrent"))


def prompt(name: str, length: int = LENGTH, seed: int = 0) -> list[int]:
    return [int(t) for t in tiny.ids(name, 1, length, seed)[0]]


@pytest.mark.parametrize("name", recurrent.CASES)
def test_float32(recurrents: RecurrentWorkshop, name: str) -> None:
    ids = prompt(name)
    with inferc.load(recurrents.artifact(name), threads=THREADS) as engine:
        ways = [engine.logits(ids, chunk) for chunk in CHUNKS]
    for chunk, way in zip(CHUNKS, ways, strict=True):
        assert np.array_equal(way.view(np.int32), ways[0].view(np.int32)), f"chunks of {chunk}"
    assert relative_error(ways[0], recurrent.logits(name, ids)) < TOLERANCE


def serve(engine: Engine, prompts: list[list[int]], at_once: int) -> dict[int, list[np.ndarray]]:
    """Rows of logits by request, with `at_once` new requests a step."""
    rows: dict[int, list[np.ndarray]] = defaultdict(list)
    engine.observe(
        lambda plan, logits: (
            [rows[s].append(row.copy()) for s, row in zip(plan.sampled, logits, strict=True)]
            and None
        )
    )
    waiting = list(enumerate(prompts))
    while waiting or engine.has_work:
        if at_once > 1 or not engine.has_work:
            for number, ids in waiting[:at_once]:
                params = SamplingParams(
                    max_tokens=24, seed=number, temperature=0.7, ignore_eos=True
                )
                engine.add_request(ids, params, priority=number % 3)
            del waiting[:at_once]
        engine.step()
    return rows


@pytest.mark.parametrize("name", SERVED)
def test_mixed_equals_alone(recurrents: RecurrentWorkshop, name: str) -> None:
    """Few pages or few places: the preempted begin again, from a state of zeros."""
    artifact = recurrents.artifact(name, sequences=4, step_tokens=64)
    budget = SCARCE_PAGES * read_manifest(artifact).kv.page_bytes or None  # no attention, no pages
    prompts = [prompt(name, 1 + 7 * i, i) for i in range(9)]
    with inferc.load(artifact, threads=1) as engine:
        alone = serve(engine, prompts, at_once=1)
    for chunk in (None, 5):
        with inferc.load(
            artifact, threads=2, kv_budget_bytes=budget, chunk_tokens=chunk, check=False
        ) as engine:
            mixed = serve(engine, prompts, at_once=4)
            assert engine.stats.preemptions > 0
            assert engine.stats.cached_tokens == 0
            assert "recurrent states" in (engine.stats.prefix_cache_off or "")
        for number, rows in alone.items():
            found = np.array(mixed[number]).view(np.int32)
            assert np.array_equal(np.array(rows).view(np.int32), found), number


def test_manifest_lists_the_states(recurrents: RecurrentWorkshop) -> None:
    manifest = read_manifest(recurrents.artifact("lfm2"))
    assert [(s.name, s.shape, s.nbytes) for s in manifest.states] == [
        ("state_0", (2, 64), 512),
        ("state_1", (2, 64), 512),
    ]
