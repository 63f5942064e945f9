"""The sampler against a plain reference that sorts everything and knows no shortcuts."""

import math
from collections import Counter

import numpy as np
import pytest

from inferc.errors import InfercError, RequestError
from inferc.runtime.request import Sampled, SamplingParams, SequenceId
from inferc.runtime.sampler import Sampler

VOCAB = 50


def reference_distribution(
    logits: np.ndarray, params: SamplingParams, prompt: list[int], output: list[int]
) -> list[float]:
    """Probabilities after all filters, in float64, one plain loop a rule."""
    values = [float(value) for value in logits]
    for token, bias in params.logit_bias.items():
        values[token] += bias
    for token in set(prompt) | set(output):
        penalty = params.repetition_penalty
        values[token] = values[token] / penalty if values[token] > 0 else values[token] * penalty
    for token, count in Counter(output).items():
        values[token] -= params.presence_penalty + params.frequency_penalty * count
    if params.temperature == 0:
        best = max(range(len(values)), key=lambda token: (values[token], -token))
        return [float(token == best) for token in range(len(values))]
    peak = max(values)
    weights = [math.exp((value - peak) / params.temperature) for value in values]
    order = sorted(range(len(values)), key=lambda token: (-weights[token], token))
    if params.top_k is not None:
        order = order[: params.top_k]
    total, reached, nucleus = sum(weights[token] for token in order), 0.0, []
    for token in order:
        if params.top_p < 1 and reached >= params.top_p * total:
            break
        reached += weights[token]
        nucleus.append(token)
    kept = {token for token in nucleus if weights[token] >= params.min_p}
    total = sum(weights[token] for token in kept)
    return [weights[t] / total if t in kept else 0.0 for t in range(len(values))]


def sample_many(
    params: SamplingParams, logits: np.ndarray, prompt: list[int], count: int, seed: int = 0
) -> Counter[int]:
    """Independent draws at the first position, each from its own seed."""
    sampler = Sampler(np.ones(len(logits), bool))
    drawn: Counter[int] = Counter()
    for index in range(count):
        sampler.add(SequenceId(index), params, prompt, seed, index)
        drawn[sampler.sample([SequenceId(index)], logits[None])[SequenceId(index)].token] += 1
        sampler.remove(SequenceId(index))
    return drawn


@pytest.mark.parametrize("case", range(60))
def test_distribution_equals_reference(case: int) -> None:
    rng = np.random.default_rng(case)
    params = SamplingParams(
        temperature=float(rng.choice([0.5, 1.0, 1.7])),
        top_k=None if rng.random() < 0.4 else int(rng.integers(1, VOCAB + 5)),
        top_p=float(rng.choice([1.0, 0.9, 0.5, 0.05])),
        min_p=float(rng.choice([0.0, 0.05, 0.3])),
        repetition_penalty=float(rng.choice([1.0, 1.3, 0.8])),
        logit_bias={3: 2.0, 5: -math.inf} if rng.random() < 0.5 else {},
    )
    logits = rng.normal(0, 2, VOCAB).astype(np.float32)
    logits[rng.integers(0, VOCAB, 20)] = logits[0]
    prompt = [1, 1, 7, 0]
    expected = reference_distribution(logits, params, prompt, [])
    draws = 1500
    drawn = sample_many(params, logits, prompt, draws, seed=case)
    assert set(drawn) <= {token for token, p in enumerate(expected) if p > 0}
    for token, probability in enumerate(expected):
        deviation = math.sqrt(draws * probability * (1 - probability)) + 1
        assert abs(drawn[token] - draws * probability) < 5 * deviation


def test_top_p_beyond_the_first_candidates() -> None:
    logits = np.random.default_rng(0).normal(0, 0.01, 3000).astype(np.float32)
    params = SamplingParams(temperature=1.0, top_p=0.5)
    expected = reference_distribution(logits, params, [], [])
    drawn = sample_many(params, logits, [], 400)
    assert all(expected[token] > 0 for token in drawn)
    assert 1400 < sum(p > 0 for p in expected) < 1600 and len(drawn) > 300


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_penalties_follow_the_output(temperature: float) -> None:
    """Token by token, with counts growing: every token is possible under the reference."""
    rng = np.random.default_rng(7)
    params = SamplingParams(
        temperature=temperature,
        top_k=3,
        presence_penalty=0.4,
        frequency_penalty=0.6,
        repetition_penalty=1.2,
    )
    sampler = Sampler(np.ones(VOCAB, bool))
    prompt, output = [4, 9], []
    sampler.add(SequenceId(0), params, prompt, 5)
    base = rng.normal(0, 1, VOCAB)
    for _ in range(60):
        logits = (base + rng.normal(0, 0.1, VOCAB)).astype(np.float32)
        token = sampler.sample([SequenceId(0)], logits[None])[SequenceId(0)].token
        assert reference_distribution(logits, params, prompt, output)[token] > 0
        output.append(token)
    assert len(set(output)) > 10


def test_greedy_takes_the_lowest_of_equals_and_needs_no_seed() -> None:
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, [11, 30]] = 2
    for seed in range(3):
        for params in (SamplingParams(), SamplingParams(logprobs=0, presence_penalty=0.1)):
            sampler = Sampler(np.ones(VOCAB, bool))
            sampler.add(SequenceId(0), params, [1], seed)
            assert sampler.sample([SequenceId(0)], logits)[SequenceId(0)].token == 11


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=5.0)])
def test_padded_ids_are_never_sampled(params: SamplingParams) -> None:
    known = np.ones(VOCAB, bool)
    known[40:] = False
    known[3] = False
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, ~known] = 100
    sampler = Sampler(known)
    tokens = set()
    for seed in range(200):
        sampler.add(SequenceId(0), params, [1], seed)
        tokens.add(sampler.sample([SequenceId(0)], logits)[SequenceId(0)].token)
    assert all(known[token] for token in tokens)


def test_results_do_not_depend_on_the_batch() -> None:
    rng = np.random.default_rng(3)
    logits = rng.normal(0, 1, (8, 6, VOCAB)).astype(np.float32)
    params = SamplingParams(temperature=1.0, top_p=0.8, frequency_penalty=0.3, logprobs=2)

    def run(order: list[int], together: bool) -> dict[int, list[Sampled]]:
        sampler = Sampler(np.ones(VOCAB, bool))
        results: dict[int, list[Sampled]] = {sequence: [] for sequence in order}
        for sequence in order:
            sampler.add(SequenceId(sequence), params, [sequence], seed=99, sample_index=sequence)
        for position in range(8):
            groups = [order] if together else [[sequence] for sequence in order]
            for group in groups:
                ids = [SequenceId(sequence) for sequence in group]
                sampled = sampler.sample(ids, logits[position, group])
                for sequence in group:
                    results[sequence].append(sampled[SequenceId(sequence)])
        return results

    assert run([0, 1, 2, 3, 4, 5], True) == run([5, 3, 1, 0, 2, 4], False)


def test_seeds_samples_and_positions_differ() -> None:
    logits = np.zeros((1, 10_000), np.float32)
    params = SamplingParams(temperature=1.0)

    def draw(seed: int, index: int) -> list[int]:
        sampler = Sampler(np.ones(10_000, bool))
        sampler.add(SequenceId(0), params, [1], seed, index)
        return [sampler.sample([SequenceId(0)], logits)[SequenceId(0)].token for _ in range(3)]

    assert draw(1, 0) == draw(1, 0)
    assert len({tuple(draw(seed, index)) for seed in range(20) for index in range(3)}) == 60
    assert len({token for seed in range(20) for token in draw(seed, 0)}) > 55


def test_logprobs_are_the_models_own() -> None:
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 2, VOCAB).astype(np.float32)
    params = SamplingParams(logprobs=3, logit_bias={7: 50.0})
    sampler = Sampler(np.ones(VOCAB, bool))
    sampler.add(SequenceId(0), params, [1], 0)
    sampled = sampler.sample([SequenceId(0)], logits[None])[SequenceId(0)]
    wide = logits.astype(np.float64)
    expected = wide - np.log(np.exp(wide).sum())
    assert sampled.token == 7
    assert sampled.logprob == pytest.approx(expected[7], abs=1e-12)
    best = sorted(range(VOCAB), key=lambda token: -expected[token])[:3]
    assert [token for token, _ in sampled.top] == best
    assert [logprob for _, logprob in sampled.top] == pytest.approx(list(expected[best]))


def test_nan_is_refused() -> None:
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, 3] = np.nan
    for params in (SamplingParams(), SamplingParams(temperature=1.0)):
        sampler = Sampler(np.ones(VOCAB, bool))
        sampler.add(SequenceId(0), params, [1], 0)
        with pytest.raises(InfercError, match="NaN"):
            sampler.sample([SequenceId(0)], logits)


@pytest.mark.parametrize(
    ("bias", "message"),
    [({VOCAB: 1.0}, "token ids of 0 to 49"), ({t: -math.inf for t in range(VOCAB)}, "every token")],
)
def test_impossible_biases_are_refused(bias: dict[int, float], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Sampler(np.ones(VOCAB, bool)).check(SamplingParams(logit_bias=bias))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1}, "temperature: expected 0"),
        ({"temperature": math.nan}, "temperature"),
        ({"top_k": 0}, "top_k: expected None or an integer of at least 1, found 0"),
        ({"top_p": 0}, "top_p"),
        ({"min_p": 1.5}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"presence_penalty": math.inf}, "presence_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 0}, "n: expected"),
        ({"logprobs": -1}, "logprobs"),
        ({"stop": ["", "x"]}, "stop"),
        ({"logit_bias": {1: math.nan}}, "logit_bias"),
        ({"tempature": 1}, "Unknown sampling option tempature; known are"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        SamplingParams().with_options(**options)


def test_a_lone_stop_string_is_one_string() -> None:
    assert SamplingParams().with_options(stop="end").stop == ("end",)
