"""Measures the choices that an artifact leaves to its machine, and keeps those that are faster.

Candidates run interleaved, round by round, so that a machine whose speed drifts is fair to all. The
default stays unless a candidate is faster by a margin in the median and in most rounds. Results are
compared bit by bit: a choice that changed one would be an error of ours, and stops the tuner.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from inferc.errors import InfercError, RequestError
from inferc.runtime.executors.cpu import CpuExecutor
from inferc.runtime.request import SamplingParams
from inferc.runtime.tuning import Candidate, Choices, Tuning

if TYPE_CHECKING:
    from inferc.runtime.engine import Engine

MARGIN = 0.03  # a candidate must be faster by this share
MOST_ROUNDS = 0.7  # and in this share of the rounds
_SPINS_US = (0, 50, 200, 1000)
_CHUNKS = (64, 128, 256, 512, 1024)
_PROBE_TOKENS = 24
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Effort:
    """How much is measured: rounds of every candidate, and the request that is timed."""

    rounds: int
    prompt_tokens: int
    new_tokens: int


@dataclass(frozen=True)
class _Option:
    """A value of one choice, and all choices with it."""

    name: str
    value: str
    choices: Choices


def tune(engine: Engine, default_threads: int, effort: Effort, progress: Progress) -> Tuning:
    """Measure on an idle engine whose prefix cache is off. Raises RequestError for a GPU."""
    from inferc.runtime.fingerprint import host_fingerprint

    executor = engine.executor
    if not isinstance(executor, CpuExecutor):
        raise RequestError("tune: expected an artifact for the CPU; a GPU leaves nothing to choose")
    tuner = _Tuner(engine, executor, default_threads, effort, progress)
    choices, measured = Choices(), []
    for stage in (_threads, _spins, _pins, _chunks):
        options = stage(choices, default_threads, engine.scheduler.config.step_tokens, effort)
        if len(options) > 1:
            choices, rows = tuner.choose(options)
            measured += rows
    return Tuning(host_fingerprint(), choices, tuple(measured))


def _threads(now: Choices, default: int, step_tokens: int, effort: Effort) -> list[_Option]:
    """Half the default and all processors, beside the default."""
    del step_tokens, effort
    from inferc.runtime.fingerprint import processors

    others = sorted({max(1, default // 2), processors()} - {default})
    rest = [_Option("threads", str(n), replace(now, threads=n)) for n in others]
    return [_Option("threads", f"{default} (default)", now), *rest]


def _spins(now: Choices, default: int, step_tokens: int, effort: Effort) -> list[_Option]:
    del step_tokens, effort
    if (now.threads or default) == 1:
        return []
    rest = [
        _Option("spin_us", str(us), replace(now, pool=replace(now.pool, spin_us=us)))
        for us in _SPINS_US
    ]
    return [_Option("spin_us", "default", now), *rest]


def _pins(now: Choices, default: int, step_tokens: int, effort: Effort) -> list[_Option]:
    del step_tokens, effort
    if (now.threads or default) == 1:
        return []
    pinned = replace(now, pool=replace(now.pool, pinned=True))
    return [_Option("pinned", "no (default)", now), _Option("pinned", "yes", pinned)]


def _chunks(now: Choices, default: int, step_tokens: int, effort: Effort) -> list[_Option]:
    """Shorter chunks than a step holds: what they leave in caches may be worth their overhead."""
    del default
    most = min(step_tokens, effort.prompt_tokens)
    rest = [
        _Option("chunk_tokens", str(n), replace(now, chunk_tokens=n)) for n in _CHUNKS if n < most
    ]
    return [_Option("chunk_tokens", f"{most} (default)", now), *rest]


@dataclass(frozen=True)
class _Tuner:
    engine: Engine
    executor: CpuExecutor
    default_threads: int
    effort: Effort
    progress: Progress

    def choose(self, options: Sequence[_Option]) -> tuple[Choices, list[Candidate]]:
        """The best of the options, of which the first is the default; and what was measured."""
        self._check_bits(options)
        times: list[list[float]] = [[] for _ in options]
        for number in range(self.effort.rounds):
            self.progress(f"{options[0].name}: round {number + 1} of {self.effort.rounds}")
            order = list(range(len(options)))
            random.Random(number).shuffle(order)
            for index in order:
                times[index].append(self._time(options[index], number))
        medians = [statistics.median(t) for t in times]
        wins = [_wins(t, times[0]) for t in times]
        best = pick(medians, wins)
        self._use(options[best].choices)
        rows = [
            Candidate(o.name, o.value, seconds, won, index == best)
            for index, (o, seconds, won) in enumerate(zip(options, medians, wins, strict=True))
        ]
        return options[best].choices, rows

    def _use(self, choices: Choices) -> None:
        self.executor.use_pool(choices.threads or self.default_threads, choices.pool)
        scheduler = self.engine.scheduler
        scheduler.config = replace(scheduler.config, chunk_tokens=choices.chunk_tokens)

    def _check_bits(self, options: Sequence[_Option]) -> None:
        """Equal logits under every option, or the tuner stops."""
        length = min(_PROBE_TOKENS, self.engine.scheduler.capacity_tokens)
        ids = next(self._prompts(length, seed=0))
        found = []
        for option in options:
            self._use(option.choices)
            chunk = None if option.choices.chunk_tokens is None else max(1, length // 3)
            found.append(self.engine.logits(ids, chunk))
        for option, logits in zip(options, found, strict=True):
            if not np.array_equal(logits.view(np.int32), found[0].view(np.int32)):
                raise InfercError(
                    f"{option.name} = {option.value} changes the model's logits; nothing was"
                    " tuned. This is an error of inferc: please report it."
                )

    def _time(self, option: _Option, number: int) -> float:
        """Seconds of one request; of its prompt alone where only that depends on the option."""
        self._use(option.choices)
        new = 1 if option.name == "chunk_tokens" else self.effort.new_tokens
        params = SamplingParams(max_tokens=new, ignore_eos=True)
        prompt = next(self._prompts(self.effort.prompt_tokens, seed=number))
        start = time.perf_counter()
        self.engine.generate([prompt], params)
        return time.perf_counter() - start

    def _prompts(self, length: int, seed: int) -> Iterator[list[int]]:
        rng, high = random.Random(seed), self.executor.vocab_size
        while True:
            yield [rng.randrange(high // 8, high) for _ in range(length)]


def pick(medians: Sequence[float], wins: Sequence[float]) -> int:
    """The fastest of those that beat the default (number 0) for sure; else the default."""
    sure = [
        index
        for index in range(1, len(medians))
        if medians[index] < (1 - MARGIN) * medians[0] and wins[index] >= MOST_ROUNDS
    ]
    return min(sure, key=lambda index: medians[index], default=0)


def _wins(times: Sequence[float], default: Sequence[float]) -> float:
    return sum(a < b for a, b in zip(times, default, strict=True)) / len(times)
