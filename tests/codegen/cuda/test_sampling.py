"""Sampling on the device against the runtime's sampler: the same tokens, not only as often."""

from __future__ import annotations

import math

import numpy as np
import pytest

from inferc.runtime.request import Sampled, SamplingParams, SequenceId
from inferc.runtime.sampler import Sampler
from tests.codegen.cuda.sampling_runner import Request, sample

ORDERS = (0, 3, 4, 11)
"""Of threads: fair, one warp ahead, and both the other way round or shuffled."""
WIDE = 4500  # more than one part of a row
VOCAB = 60


def on_the_host(
    requests: list[Request], logits: np.ndarray, holes: tuple[int, ...] = ()
) -> list[Sampled]:
    known = np.ones(logits.shape[1], bool)
    known[list(holes)] = False
    sampler = Sampler(known)
    for i, request in enumerate(requests):
        sequence = SequenceId(i)
        sampler.add(sequence, request.params, request.prompt, request.seed, request.sample)
        state = sampler._states[sequence]
        for token in request.output:
            state.counts[token] = state.counts.get(token, 0) + 1
            state.sampled += 1
    found = sampler.sample([SequenceId(i) for i in range(len(requests))], logits)
    return [found[SequenceId(i)] for i in range(len(requests))]


def check(
    requests: list[Request], logits: np.ndarray, holes: tuple[int, ...] = (), order: int = 0
) -> None:
    found = sample(requests, logits, holes=holes, order=order)
    assert not any(found.status)
    for a, b in zip(found.sampled, on_the_host(requests, logits, holes), strict=True):
        assert a.token == b.token
        assert [t for t, _ in a.top] == [t for t, _ in b.top]
        pairs = [*zip(a.top, b.top, strict=True), ((0, a.logprob or 0.0), (0, b.logprob or 0.0))]
        assert max(abs(x - y) for (_, x), (_, y) in pairs) < 1e-12


def random_params(rng: np.random.Generator, columns: int) -> SamplingParams:
    few = int(rng.integers(1, 40))
    return SamplingParams(
        temperature=float(rng.choice([0.0, 0.5, 1.0, 1.7])),
        top_k=[None, few, int(rng.integers(1, columns + 50))][rng.integers(3)],
        top_p=float(rng.choice([1.0, 0.9, 0.5, 0.05])),
        min_p=float(rng.choice([0.0, 0.05, 0.3])),
        repetition_penalty=float(rng.choice([1.0, 1.3, 0.8])),
        presence_penalty=float(rng.choice([0.0, 0.5])),
        frequency_penalty=float(rng.choice([0.0, 0.25])),
        logit_bias={5: 2.0, 9: -math.inf, columns - 1: 1.5} if rng.random() < 0.5 else {},
        logprobs=None if rng.random() < 0.5 else int(rng.integers(0, 6)),
    )


def random_requests(rng: np.random.Generator, count: int, columns: int) -> list[Request]:
    return [
        Request(
            random_params(rng, columns), [int(t) for t in rng.integers(0, columns, 5)],
            [int(t) for t in rng.integers(0, columns, 4)] * 2, int(rng.integers(0, 2**63)), i % 3,
        )
        for i in range(count)
    ]  # fmt: skip


def random_logits(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Half of them rounded, so that many are equal."""
    logits = rng.normal(0, 3, (rows, columns)).astype(np.float32)
    some = rng.integers(0, columns, columns // 2)
    logits[:, some] = np.round(logits[:, some])
    return logits


@pytest.mark.parametrize("case", range(6))
def test_the_tokens_of_the_host(case: int) -> None:
    rng = np.random.default_rng(case)
    requests = random_requests(rng, 8, WIDE)
    holes = (0, 17, WIDE - 2) if case % 2 else ()
    check(requests, random_logits(rng, 8, WIDE), holes, ORDERS[case % len(ORDERS)])


@pytest.mark.parametrize("case", range(10))
def test_many_draws_of_one_distribution(case: int) -> None:
    """What a filter leaves too much or too little would be drawn, or missed, sooner or later."""
    rng = np.random.default_rng(100 + case)
    logits = random_logits(rng, 1, VOCAB)
    params = random_params(rng, VOCAB).with_options(temperature=1.3, logprobs=None)
    requests = [Request(params, (1, 1, 7), (), seed, 1) for seed in range(150)]
    check(requests, np.repeat(logits, len(requests), axis=0), order=6)


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 700}, {"top_p": 0.41}, {"top_k": 1300, "top_p": 0.7},
        {"top_k": 2600, "min_p": 0.9}, {"top_k": 1},
    ],
)  # fmt: skip
def test_more_equal_logits_than_can_be_sorted(options: dict[str, float]) -> None:
    """Of equal ones the lowest ids stay."""
    logits = np.full((6, 3000), 2.5, np.float32)
    logits[:, 1000:1300] = 2.5001
    logits[:, 70] = -np.inf
    params = SamplingParams(temperature=0.8, **options)  # type: ignore[arg-type]
    requests = [Request(params, (), (), seed) for seed in range(6)]
    check(requests, logits, order=ORDERS[1])


def test_a_row_does_not_depend_on_the_batch() -> None:
    rng = np.random.default_rng(5)
    requests, logits = random_requests(rng, 5, WIDE), random_logits(rng, 5, WIDE)
    whole = sample(requests, logits).sampled
    for i in (1, 4):
        assert sample(requests[i : i + 1], logits[i : i + 1]).sampled == [whole[i]]


def test_what_is_launched() -> None:
    logits = random_logits(np.random.default_rng(1), 2, VOCAB)
    greedy, warm = SamplingParams(), SamplingParams(temperature=1.0)
    for params, kernels in (
        ([greedy, greedy], ["scan", "settle"]),
        ([greedy, warm], ["scan", "settle", "mass", "draw"]),
        ([warm.with_options(top_k=3)] * 2, ["scan", "settle", "weigh", "limit", "mass", "draw"]),
        ([greedy.with_options(logprobs=0)] * 2, ["scan", "settle", "weigh", "draw"]),
        ([greedy.with_options(logit_bias={3: 1.0})] * 2, ["edit", "scan", "settle"]),
    ):
        assert sample([Request(p) for p in params], logits).launches == kernels


def test_logits_that_are_no_numbers_are_told() -> None:
    logits = random_logits(np.random.default_rng(2), 3, VOCAB)
    logits[0, 7] = logits[1, 33] = np.nan
    warm = SamplingParams(temperature=1.0, top_p=0.5, top_k=5, logprobs=2)
    for params in (SamplingParams(), warm):
        assert sample([Request(params)] * 3, logits).status == [1, 1, 0]
    assert sample([Request(warm)] * 3, logits, holes=(7, 33)).status == [0, 0, 0]


def test_one_token_that_is_allowed() -> None:
    logits = np.full((2, VOCAB), -np.inf, np.float32)
    logits[0, 11], logits[1, 59] = 3.0, -1e30
    params = SamplingParams(temperature=0.7, top_k=4, top_p=0.9)
    found = sample([Request(params), Request(params.with_options(min_p=1.0))], logits)
    assert [s.token for s in found.sampled] == [11, 59]
