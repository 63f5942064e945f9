"""Seeded random workloads over scheduler and block manager, with every invariant checked.

Run it alone for many seeds: `python tests/runtime/runtime_workload.py 100000`.
"""

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass

from runtime_toy import ToyCache, answer, prefix_hashes

from inferc.runtime.block_manager import BlockManager
from inferc.runtime.plan import Plan, Rows
from inferc.runtime.request import Sampled, Sequence, SequenceId
from inferc.runtime.scheduler import Scheduler
from inferc.runtime.scheduler_config import SchedulerConfig

TOKENS = 3
"""A tiny vocabulary, so that prompts share prefixes and stop tokens come up."""

MakeScheduler = Callable[[SchedulerConfig, BlockManager], Scheduler]


@dataclass(frozen=True)
class Arrival:
    step: int
    prompt: tuple[int, ...]
    max_length_tokens: int
    stop_ids: frozenset[int]
    priority: int
    follows: int | None
    cancel_step: int | None


@dataclass(frozen=True)
class Workload:
    config: SchedulerConfig
    total_blocks: int
    page_tokens: int
    states: bool
    arrivals: tuple[Arrival, ...]

    @property
    def state_slots(self) -> int:
        return self.config.running_limit if self.states else 0


def expected_tokens(arrival: Arrival) -> list[int]:
    """What the toy model generates for a request that is alone in the world."""
    token_ids = list(arrival.prompt)
    while len(token_ids) < arrival.max_length_tokens:
        token_ids.append(answer(prefix_hashes(token_ids)) % TOKENS)
        if token_ids[-1] in arrival.stop_ids:
            break
    return token_ids[len(arrival.prompt) :]


def random_workload(seed: int) -> Workload:
    rng = random.Random(seed)
    page_tokens = rng.choice((1, 2, 3, 4))
    total_blocks = rng.randint(3, 12)
    states = rng.random() < 0.3
    config = SchedulerConfig(
        step_tokens=rng.randint(1, 12),
        sequences=rng.randint(1, 5),
        context_tokens=rng.randint(4, 40),
        chunk_tokens=rng.choice((None, None, 1, 3)),
        prefix_cache=rng.random() < 0.8 and not states,
        mixed_prompt_tokens=random.Random(f"mixed {seed}").choice((None, None, 1, 2, 5)),
    )
    capacity = min(config.context_tokens, total_blocks * page_tokens)
    stems = [[rng.randrange(TOKENS) for _ in range(capacity)] for _ in range(2)]
    count = rng.randint(1, 6)
    arrivals = tuple(_random_arrival(rng, index, capacity, stems) for index in range(count))
    return Workload(config, total_blocks, page_tokens, states, arrivals)


def _random_arrival(
    rng: random.Random, index: int, capacity: int, stems: list[list[int]]
) -> Arrival:
    length = rng.randint(1, capacity - 1)
    prompt = list(rng.choice(stems)[:length])
    if rng.random() < 0.3:
        prompt[rng.randrange(length)] = rng.randrange(TOKENS)
    step = rng.choice((0, 0, rng.randint(0, 20)))
    return Arrival(
        step,
        tuple(prompt),
        rng.randint(length + 1, min(capacity, length + 12)),
        frozenset({rng.randrange(TOKENS)}) if rng.random() < 0.2 else frozenset(),
        rng.choice((0, 0, 0, 1, 2)),
        rng.randrange(index) if index and rng.random() < 0.2 else None,
        step + rng.randint(0, 15) if rng.random() < 0.15 else None,
    )


class Driver:
    """Runs one workload; raises AssertionError or InvariantError on the first broken rule."""

    def __init__(self, workload: Workload, make_scheduler: MakeScheduler = Scheduler) -> None:
        self.workload = workload
        self.blocks = BlockManager(workload.total_blocks, workload.page_tokens)
        self.cache = ToyCache(workload.total_blocks, workload.page_tokens, workload.state_slots)
        self.scheduler = make_scheduler(workload.config, self.blocks)
        self.tokens: list[list[int]] = [[] for _ in workload.arrivals]
        self.finished: set[int] = set()
        self.cancelled: set[int] = set()
        self.step = 0

    def run(self) -> None:
        pending = sorted(enumerate(self.workload.arrivals), key=lambda item: item[1].step)
        longest = sum(arrival.max_length_tokens for arrival in self.workload.arrivals)
        bound = 20 + 2 * longest
        while pending or self.scheduler.has_work:
            while pending and pending[0][1].step <= self.step:
                self._add(*pending.pop(0))
            self._step()
            self.step += 1
            assert self.step <= bound, f"no end after {bound} steps"
        self._check_end()

    def _add(self, index: int, arrival: Arrival) -> None:
        leader = None if arrival.follows is None else SequenceId(arrival.follows)
        self.scheduler.add(
            Sequence(
                SequenceId(index),
                len(arrival.prompt),
                list(arrival.prompt),
                arrival.max_length_tokens,
                arrival.stop_ids,
                arrival.priority,
                leader,
            )
        )

    def _step(self) -> None:
        busy = self.scheduler.has_work
        plan = self.scheduler.plan()
        assert plan.tokens > 0 or not busy, "work, but an empty plan"
        self.scheduler.check()
        self._check_plan(plan)
        self._cancel()
        answers = self.cache.run(plan)
        sampled = {
            sequence: Sampled(value % TOKENS)
            for sequence, value in zip(plan.sampled, answers, strict=True)
        }
        for output in self.scheduler.commit(plan, sampled):
            assert output.sequence not in self.finished | self.cancelled
            self.tokens[output.sequence].append(output.sampled.token)
            if output.finish_reason is not None:
                self.finished.add(output.sequence)
        self.scheduler.check()

    def _check_plan(self, plan: Plan) -> None:
        """Ranges lie in sequence and table; what is cached is exactly the prefix; rows fit."""
        config = self.workload.config
        assert plan.tokens <= config.step_tokens
        assert len(plan.sequences) <= config.sequences
        assert len({entry.sequence for entry in plan.sequences}) == len(plan.sequences)
        written: set[tuple[int, int]] = set()
        for entry in plan.sequences:
            sequence = self.scheduler.get(entry.sequence)
            assert sequence is not None
            end = entry.start + entry.length
            assert 0 <= entry.start < end <= len(sequence.token_ids)
            assert end <= len(entry.blocks) * self.workload.page_tokens
            assert entry.token_ids == tuple(sequence.token_ids[entry.start : end])
            assert (entry.rows is Rows.LAST) == (end == len(sequence.token_ids))
            held = self.cache.read(entry.blocks, entry.start)
            assert held == prefix_hashes(sequence.token_ids[: entry.start]), "stale page"
            if self.workload.states and entry.start > 0:
                state = self.cache.states[entry.state_slot]
                assert state == prefix_hashes(sequence.token_ids[: entry.start])[-1], "stale state"
            written |= self._slots(entry.blocks, entry.start, end)
        slots = {entry.state_slot for entry in plan.sequences}
        assert len(slots) == len(plan.sequences), "two sequences share a state"
        assert all(0 <= slot < config.running_limit for slot in slots)
        assert len(written) == plan.tokens, "two tokens share a slot"

    def _slots(self, blocks: tuple[int, ...], start: int, end: int) -> set[tuple[int, int]]:
        places = (divmod(position, self.workload.page_tokens) for position in range(start, end))
        return {(blocks[page], offset) for page, offset in places}

    def _cancel(self) -> None:
        """Cancellation strikes between plan and commit, the worst moment."""
        for index, arrival in enumerate(self.workload.arrivals):
            if arrival.cancel_step == self.step and self.scheduler.finish(SequenceId(index)):
                self.cancelled.add(index)

    def _check_end(self) -> None:
        assert self.blocks.free == self.workload.total_blocks, "blocks leaked"
        for index, arrival in enumerate(self.workload.arrivals):
            expected = expected_tokens(arrival)
            if index in self.cancelled:
                expected = expected[: len(self.tokens[index])]
            else:
                assert index in self.finished
            assert self.tokens[index] == expected, f"wrong tokens for sequence {index}"


def run_seeds(first: int, last: int, make_scheduler: MakeScheduler = Scheduler) -> dict[int, str]:
    """Failures by seed."""
    failures = {}
    for seed in range(first, last):
        try:
            Driver(random_workload(seed), make_scheduler).run()
        except Exception as error:
            failures[seed] = f"{type(error).__name__}: {error}"
    return failures


if __name__ == "__main__":
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    found = run_seeds(0, seeds)
    print(f"{seeds} seeds, {len(found)} failures")
    for failing_seed, message in list(found.items())[:10]:
        print(f"  seed {failing_seed}: {message}")
    sys.exit(bool(found))
