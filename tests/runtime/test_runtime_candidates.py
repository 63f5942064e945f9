"""Looking at the few logits that matter gives the tokens of looking at all."""

import numpy as np
import pytest

from inferc.runtime import sampler as sampler_module
from inferc.runtime.candidates import candidates, largest
from inferc.runtime.request import SamplingParams, SequenceId
from inferc.runtime.sampler import Sampler

VOCAB = 3000
ONE = SequenceId(0)
OPTIONS = [
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.0, "top_k": 20},
    {"temperature": 0.3, "top_k": 5, "top_p": 0.8},
    {"temperature": 2.0, "top_k": 20, "min_p": 0.02, "logit_bias": {7: 9.0, 8: -9.0, 2999: 3.0}},
    {"temperature": 1.5, "top_k": 8, "repetition_penalty": 1.3, "presence_penalty": 0.5},
    {"temperature": 1.0, "top_k": 12, "repetition_penalty": 0.5, "logit_bias": {1: -np.inf}},
    {"logit_bias": {3: 4.0, 4: -np.inf}},
    {"repetition_penalty": 1.2, "frequency_penalty": 0.7},
    {"temperature": 1.0, "top_k": 2000},
]


def rows(kind: str, count: int) -> np.ndarray:
    rng = np.random.default_rng(5)
    found = rng.standard_normal((count, VOCAB)).astype(np.float32) * 3
    if kind == "ties":
        found = np.round(found)
    elif kind == "tiny":  # different logits that come out equal: what is lost in the difference
        found = np.where(found > 5, np.float32(1e-25) * found, np.float32(-40))
        found[:, 17] = 30
    elif kind == "few":
        found = np.where(found > 7, found, np.float32(-np.inf))
        found[:, [3, 2500]] = 1
    elif kind == "equal":
        found[:] = 2
    return found.astype(np.float32)


def tokens(options: dict[str, object], logits: np.ndarray) -> list[int]:
    made = Sampler(np.arange(VOCAB + 40) < VOCAB - 3)
    made.add(ONE, SamplingParams(**options), [5, 6, 7, 2998], seed=11)
    padded = np.pad(logits, ((0, 0), (0, 40)), constant_values=100)
    return [made.sample([ONE], padded[i : i + 1])[ONE].token for i in range(len(logits))]


@pytest.mark.parametrize("kind", ["normal", "ties", "tiny", "few", "equal"])
@pytest.mark.parametrize("options", OPTIONS, ids=range(len(OPTIONS)))
def test_same_tokens(
    options: dict[str, object], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = rows(kind, 40)
    found = tokens(options, logits)
    monkeypatch.setattr(sampler_module, "_candidates", lambda state, row: None)
    assert tokens(options, logits) == found


def test_they_are_few() -> None:
    logits = rows("normal", 1)[0]
    found = candidates(logits, 20, 1.0)
    assert found is not None and 20 <= len(found) < 100
    assert set(np.argsort(-logits)[:20]) <= set(found)


@pytest.mark.parametrize("count", [1, 3, 20, 23, 24, 500, VOCAB])
@pytest.mark.parametrize("kind", ["normal", "ties", "few", "equal"])
def test_largest_is_a_stable_sort(kind: str, count: int) -> None:
    values = rows(kind, 1)[0].astype(np.float64)
    expected = np.argsort(-values, kind="stable")[:count]
    assert largest(values, count).tolist() == expected.tolist()
