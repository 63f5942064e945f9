"""A model of one line whose answers depend on the exact contents of the KV pages.

A slot holds a hash of the whole prefix that ends there; the logits at a position are a hash of what
all slots of the table hold. So a page that is stale, foreign, or not computed yet changes the
answer. With states, new slots follow from the sequence's state instead of from its last page: a
state that is stale or foreign changes the answer too. New contents become readable when the step is
over: a plan promises no order within a step.
"""

from collections.abc import Sequence

import numpy as np

from inferc.runtime.block_manager import BlockId
from inferc.runtime.plan import Plan, PlannedSequence, Rows


def prefix_hashes(token_ids: Sequence[int]) -> list[int]:
    """What the slots of a correctly computed sequence hold."""
    hashes, value = [], 0
    for token in token_ids:
        value = hash((value, token))
        hashes.append(value)
    return hashes


def answer(slots: Sequence[int]) -> int:
    """The one number from which the logits at a position follow."""
    return hash(tuple(slots)) & (2**63 - 1)


class ToyCache:
    """Pages of prefix hashes; with `state_slots`, states that hold the hash of the whole prefix."""

    def __init__(self, total: int, page_tokens: int, state_slots: int = 0) -> None:
        self.page_tokens = page_tokens
        self.states: list[int | None] = [None] * state_slots
        self.pages: list[list[int | None]] = [[None] * page_tokens for _ in range(total)]

    def read(self, blocks: Sequence[BlockId], tokens: int) -> list[int | None]:
        """Contents of the first `tokens` slots of a table."""
        held = [slot for block in blocks for slot in self.pages[block]]
        return held[:tokens]

    def run(self, plan: Plan) -> list[int]:
        """Answers of the wanted rows, in order; then the new contents are stored."""
        answers: list[int] = []
        pending = []
        for entry in plan.sequences:
            held = self.read(entry.blocks, entry.start)
            fresh = self._fresh(entry, self._before(entry, held))
            pending.append((entry, fresh))
            answers += self._answers(entry, held + fresh)
        for entry, fresh in pending:
            for position, value in enumerate(fresh, entry.start):
                page, offset = divmod(position, self.page_tokens)
                self.pages[entry.blocks[page]][offset] = value
            if self.states:
                self.states[entry.state_slot] = fresh[-1]
        return answers

    def _before(self, entry: PlannedSequence, held: list[int | None]) -> int | None:
        if entry.start == 0:
            return 0
        return self.states[entry.state_slot] if self.states else held[-1]

    def _fresh(self, entry: PlannedSequence, value: int | None) -> list[int]:
        fresh = []
        for token in entry.token_ids:
            value = hash((value, token))
            fresh.append(value)
        return fresh

    def _answers(self, entry: PlannedSequence, slots: list[int]) -> list[int]:
        if entry.rows is Rows.NONE:
            return []
        first = entry.start + 1 if entry.rows is Rows.ALL else len(slots)
        return [answer(slots[:length]) for length in range(first, len(slots) + 1)]


def toy_logits(value: int, vocab_size: int) -> np.ndarray:
    """A row of logits that follows from an answer."""
    return np.random.default_rng(value).normal(0, 4, vocab_size).astype(np.float32)


class ToyExecutor:
    """The toy model behind the executor's interface."""

    def __init__(self, total_blocks: int, page_tokens: int, vocab_size: int) -> None:
        self.total_blocks = total_blocks
        self.page_tokens = page_tokens
        self.vocab_size = vocab_size
        self.cache = ToyCache(total_blocks, page_tokens)
        self.plans: list[Plan] = []
        self.closed = False

    def run(self, plan: Plan) -> np.ndarray:
        self.plans.append(plan)
        rows = [toy_logits(value, self.vocab_size) for value in self.cache.run(plan)]
        return np.array(rows, np.float32).reshape(-1, self.vocab_size)

    def close(self) -> None:
        self.closed = True
