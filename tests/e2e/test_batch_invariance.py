"""A request's result depends on nothing but the request: same tokens, same bits of logits.

Forty random requests run alone, and then mixed: with pages so scarce that sequences are preempted
and recomputed, with and without the prefix cache, in small chunks, on another number of threads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import inferc
from inferc import Engine, SamplingParams
from inferc.runtime.artifact import read_manifest
from inferc.runtime.executors.base import Logits
from inferc.runtime.plan import Plan
from tests import tiny
from tests.e2e.workshop import Workshop

REQUESTS = 40
SCARCE_PAGES = 14
MODELS = ("gemma2", "llama", "minicpm3")  # windows by layer, full attention, a latent cache


@dataclass(frozen=True)
class Request:
    prompt: tuple[int, ...]
    params: SamplingParams
    priority: int


@dataclass(frozen=True)
class Result:
    tokens: tuple[int, ...]
    logits: np.ndarray


@cache
def requests(seed: int = 0) -> tuple[Request, ...]:
    """Prompts of very different lengths, a third of them with a common beginning."""
    rng = np.random.default_rng(seed)
    common = rng.integers(0, 256, 80)
    made = []
    for number in range(REQUESTS):
        own = rng.integers(0, 256, rng.integers(1, 70))
        shared = common[: rng.integers(33, 80)] if number % 3 == 0 else common[:0]
        greedy = number % 4 == 0
        params = SamplingParams(
            max_tokens=int(rng.integers(2, 40)),
            temperature=0.0 if greedy else float(rng.uniform(0.5, 1.5)),
            top_p=0.95,
            seed=number,
            ignore_eos=True,
        )
        prompt = tuple(int(token) for token in np.concatenate([shared, own]))
        made.append(Request(prompt, params, int(rng.integers(0, 3))))
    return tuple(made)


@contextmanager
def observed(engine: Engine) -> Iterator[dict[int, list[np.ndarray]]]:
    """Every row of logits that a token was sampled from, by the number of the request."""
    rows: dict[int, list[np.ndarray]] = defaultdict(list)

    def see(plan: Plan, logits: Logits) -> None:
        for sequence, row in zip(plan.sampled, logits, strict=True):
            rows[sequence].append(row.copy())

    engine.observe(see)
    yield rows


def results(engine: Engine, at_once: int) -> list[Result]:
    """Serve all requests, at most `at_once` new ones a step. Sequences count up from 0."""
    tokens: dict[int, list[int]] = defaultdict(list)
    waiting = list(requests())
    with observed(engine) as rows:
        while waiting or engine.has_work:
            if at_once > 1 or not engine.has_work:
                for request in waiting[:at_once]:
                    engine.add_request(request.prompt, request.params, priority=request.priority)
                del waiting[:at_once]
            for event in engine.step():
                if event.token is not None:
                    tokens[event.request].append(event.token)
    return [Result(tuple(tokens[i]), np.array(rows[i])) for i in range(REQUESTS)]


@pytest.fixture(scope="module", params=MODELS)
def artifact(request: pytest.FixtureRequest, workshop: Workshop) -> Path:
    return workshop.artifact(request.param)


@pytest.fixture(scope="module")
def alone(artifact: Path) -> list[Result]:
    with inferc.load(artifact, threads=1, prefix_cache=False) as engine:
        return results(engine, at_once=1)


@pytest.mark.parametrize("prefix_cache", [False, True])
@pytest.mark.parametrize("chunk_tokens", [None, 5])
def test_mixed_equals_alone(
    artifact: Path, alone: list[Result], prefix_cache: bool, chunk_tokens: int | None
) -> None:
    budget = SCARCE_PAGES * read_manifest(artifact).kv.page_bytes
    with inferc.load(
        artifact,
        threads=2,
        kv_budget_bytes=budget,
        prefix_cache=prefix_cache,
        chunk_tokens=chunk_tokens,
    ) as engine:
        mixed = results(engine, at_once=7)
        assert engine.stats.preemptions > 0
        assert (engine.stats.cached_tokens > 0) is prefix_cache
    for number, (one, other) in enumerate(zip(alone, mixed, strict=True)):
        assert one.tokens == other.tokens, number
        assert len(one.tokens) == requests()[number].params.max_tokens
        assert np.array_equal(one.logits.view(np.int32), other.logits.view(np.int32)), number


def test_logits_are_those_of_the_model(artifact: Path, alone: list[Result]) -> None:
    """What was compared above is right, not just equal to itself."""
    name = artifact.name.split("-float32")[0]
    for number in range(0, REQUESTS, 8):
        request, result = requests()[number], alone[number]
        ids = np.array([[*request.prompt, *result.tokens[:-1]]])
        wanted = tiny.logits(name, ids)[0, len(request.prompt) - 1 :]
        assert np.allclose(result.logits, wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())
