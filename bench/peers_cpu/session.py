"""One session: every engine in its own process, timed in turn, round after round.

Interleaved, so that drift of the machine hits all alike; limits are measured between the timings.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from bench.peers_cpu.catalog import Figure
from bench.peers_cpu.process import Answer, Launch, Worker, WorkerFailed
from bench.peers_cpu.rows import Column, Limit, Timing

T = TypeVar("T")
LEAST_ID, END_ID = 300, 40000
"""Token ids of prompts: ordinary ones of every vocabulary here."""
START_ROUNDS = 3
_AFTER_START = Figure("peak memory", "start", "MB", prompt_tokens=512, new_tokens=32)
_WARM_TOKENS = 4


class Probes(Protocol):
    """What `machine.Limits` measures."""

    def read_bytes_per_s(self) -> float: ...

    def rates(self) -> dict[str, float]: ...


def prompts(figure: Figure, round_: int) -> list[list[int]]:
    """The same for all engines in a round, and new in every round: no prefix cache helps."""
    rng = random.Random(f"{figure.name} {round_}")
    lengths = [figure.prompt_tokens] * figure.batch
    return [[rng.randrange(LEAST_ID, END_ID) for _ in range(length)] for length in lengths]


class Slot:
    """One contender: its worker, if it lives, its timings, and what went wrong."""

    def __init__(self, launch: Launch | str, limit_s: float) -> None:
        self.launch, self.limit_s = launch, limit_s
        self.worker: Worker | None = None
        self.version = ""
        self.timings: dict[str, list[Timing]] = {}
        self.failed: dict[str, str] = {}

    def time(self, figure: Figure, round_: int) -> None:
        """One timing; the first round's is short, and thrown away.

        A figure that failed is not tried again.
        """
        if not round_:
            figure = replace(figure, new_tokens=min(figure.new_tokens, _WARM_TOKENS))
        asked = prompts(figure, round_)
        answer = self._attempt(figure.name, lambda: self._awake().run(asked, figure.new_tokens))
        if answer is None:
            return
        wrong = _wrong(answer, figure)
        if wrong:
            self.failed[figure.name] = wrong
        elif round_:
            first = tuple(tokens[0] for tokens in answer.tokens)
            self._note(figure.name, Timing(_rate(figure, answer), answer.foreign, first))

    def start_afresh(self, names: Sequence[str], round_: int) -> None:
        """A new process for the figures of starting; the first round's fills the file cache."""
        started = self._attempt(names[0], self._start)
        if started is None:
            self.failed.update({name: self.failed[names[0]] for name in names})
            return
        values = {"load": started.hello["load_s"], "process": started.process_s}
        if round_:
            asked = prompts(_AFTER_START, round_)
            used = self._attempt("peak memory", lambda: started.run(asked, _AFTER_START.new_tokens))
            if used is not None:
                values["peak memory"] = started.peak_memory_bytes() / 1e6
            for name in set(names) & set(values):
                self._note(name, Timing(values[name], started.start_foreign))
        started.close()

    def close(self) -> None:
        """End the worker; the next timing starts another."""
        if self.worker is not None:
            self.worker.close()
        self.worker = None

    def column(self, name: str) -> Column:
        """What came out for one figure."""
        return Column(self.timings.get(name, []), self.failed.get(name))

    def _note(self, name: str, timing: Timing) -> None:
        self.timings.setdefault(name, []).append(timing)

    def _start(self) -> Worker:
        if isinstance(self.launch, str):
            raise WorkerFailed(self.launch)
        worker = Worker(self.launch, self.limit_s)
        self.version = worker.hello["version"]
        return worker

    def _awake(self) -> Worker:
        if self.worker is None:
            self.worker = self._start()
        return self.worker

    def _attempt(self, name: str, action: Callable[[], T]) -> T | None:
        if name in self.failed:
            return None
        try:
            return action()
        except WorkerFailed as reason:
            self.failed[name] = str(reason)
            self.close()
            return None


def _rate(figure: Figure, answer: Answer) -> float:
    if figure.kind == "prefill":
        return figure.batch * figure.prompt_tokens / answer.first_s
    return answer.rest_tokens / answer.rest_s


def _wrong(answer: Answer, figure: Figure) -> str | None:
    """What is wrong with the tokens; None if there are as many as were asked for."""
    lengths = [len(tokens) for tokens in answer.tokens]
    if lengths == [figure.new_tokens + 1] * figure.batch:
        return None
    return f"gave {sum(lengths)} tokens instead of {figure.batch * (figure.new_tokens + 1)}"


@dataclass
class Measured:
    """All columns of a session by engine and figure, and the limits by figure."""

    columns: dict[str, dict[str, Column]]
    versions: dict[str, str]
    limits: dict[str, Limit] = field(default_factory=dict)


def measure(
    launches: Mapping[str, Launch | str], figures: Sequence[Figure], rounds: int, probes: Probes,
    limit_s: float, *, most_s: float = math.inf, clock: Callable[[], float] = time.monotonic,
) -> Measured:  # fmt: skip
    """Run all figures on all engines; a text instead of a launch says why there is none.

    A round that would end later than `most_s` after the beginning is not begun, but for the first
    two of each kind: the one for warmth and one that counts.
    """
    slots = {name: Slot(launch, limit_s) for name, launch in launches.items()}
    limits: dict[str, Limit] = {}
    end_s = clock() + most_s
    try:
        starting = [figure.name for figure in figures if figure.kind == "start"]
        for round_ in _rounds(min(rounds, START_ROUNDS) if starting else None, end_s, clock):
            for name, slot in _rotated(slots, round_):
                _tell(f"round {round_}: start of {name}")
                slot.start_afresh(starting, round_)
        timed = [figure for figure in figures if figure.kind in ("decode", "prefill")]
        for round_ in _rounds(rounds if timed else None, end_s, clock):
            for figure in timed:
                limits[figure.name] = _more(limits.get(figure.name), probes)
                for name, slot in _rotated(slots, round_):
                    _tell(f"round {round_}: {figure.name}, {name}")
                    slot.time(figure, round_)
    finally:
        for slot in slots.values():
            slot.close()
    columns = {n: {f.name: slot.column(f.name) for f in figures} for n, slot in slots.items()}
    return Measured(columns, {n: slot.version for n, slot in slots.items()}, limits)


def _rounds(rounds: int | None, end_s: float, clock: Callable[[], float]) -> Iterator[int]:
    """0 for warmth, then 1 to `rounds` while another like the one before ends in time."""
    before = clock()
    for round_ in range(0 if rounds is None else rounds + 1):
        now = clock()
        if round_ > 1 and now + (now - before) > end_s:
            _tell(f"no time for round {round_}")
            return
        before = now
        yield round_


def _rotated(slots: Mapping[str, Slot], round_: int) -> list[tuple[str, Slot]]:
    """Each round begins with another engine, so that none is always the one after a pause."""
    order = list(slots.items())
    first = round_ % len(order)
    return order[first:] + order[:first]


def _more(limit: Limit | None, probes: Probes) -> Limit:
    """The readings so far and one more of each."""
    read = [*(limit.read_bytes_per_s if limit else []), probes.read_bytes_per_s()]
    rates = {
        name: [*(limit.rates.get(name, []) if limit else []), rate]
        for name, rate in probes.rates().items()
    }
    return Limit(read, rates)


def _tell(text: str) -> None:
    print(f"  {time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
