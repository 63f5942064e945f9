"""A mixed load: when requests arrive, how long their prompts and answers are, what they share.

Lengths are log-normal. Their means are those of conversations in ShareGPT: 161 tokens of prompt and
338 of answer (Kwon et al., "Efficient Memory Management for Large Language Model Serving with
PagedAttention", SOSP 2023, figure 11). The paper prints no spread; the log-normal shape is ours and
makes a long tail: the 99th percentile of prompts is about 6 times their mean.
Everything follows from the seed; no engine sees other requests than another.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

PROMPT_MEAN_TOKENS, PROMPT_SIGMA = 161.0, 1.0
ANSWER_MEAN_TOKENS, ANSWER_SIGMA = 338.0, 0.7
LEAST_TOKENS, MOST_TOKENS = 4, 1024


@dataclass(frozen=True)
class Load:
    """What is asked for.

    Attributes:
        requests: How many.
        vocab_size: Ids are drawn from `[100, vocab_size - 100)`.
        scale: Factor on all lengths, for machines that would take too long.
        shared: Share of requests whose prompt begins with one of the system prompts.
        system_prompts: How many there are.
        system_tokens: Length of each, before `scale`.
        seed: Of lengths, ids and arrivals.
    """

    requests: int
    vocab_size: int
    scale: float = 1.0
    shared: float = 0.5
    system_prompts: int = 3
    system_tokens: int = 256
    seed: int = 0


@dataclass(frozen=True)
class Request:
    """One request; `arrival_s` counts from the start of the run."""

    prompt: tuple[int, ...]
    answer_tokens: int
    arrival_s: float = 0.0


def requests(load: Load) -> list[Request]:
    """All requests, arriving at once."""
    rng = random.Random(load.seed)
    length = max(LEAST_TOKENS, round(load.system_tokens * load.scale))
    systems = [_ids(rng, load.vocab_size, length) for _ in range(load.system_prompts)]
    found = []
    for _ in range(load.requests):
        head = rng.choice(systems) if rng.random() < load.shared else ()
        own = lognormal_tokens(rng, PROMPT_MEAN_TOKENS, PROMPT_SIGMA, load.scale)
        answer = lognormal_tokens(rng, ANSWER_MEAN_TOKENS, ANSWER_SIGMA, load.scale)
        found.append(Request((*head, *_ids(rng, load.vocab_size, own)), answer))
    return found


def poisson(asked: Sequence[Request], rate_per_s: float, seed: int) -> list[Request]:
    """The same requests, with exponential gaps of mean `1 / rate_per_s`.

    The gaps of two rates differ by a factor only, so a rate changes nothing but the speed.
    """
    rng, now, found = random.Random(f"arrivals {seed}"), 0.0, []
    for request in asked:
        now += rng.expovariate(1.0) / rate_per_s
        found.append(replace(request, arrival_s=now))
    return found


def lognormal_tokens(rng: random.Random, mean: float, sigma: float, scale: float) -> int:
    """A length whose mean is `mean * scale` before it is cut to the limits."""
    drawn = rng.lognormvariate(math.log(mean) - sigma**2 / 2, sigma)
    return max(LEAST_TOKENS, round(scale * min(drawn, MOST_TOKENS)))


def _ids(rng: random.Random, vocab_size: int, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(100, vocab_size - 100) for _ in range(count))
