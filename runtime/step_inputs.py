"""From a plan to the integer arrays of the step, in buffers that are allocated once."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inferc.errors import InfercError
from inferc.runtime.artifact import Limits
from inferc.runtime.block_manager import BlockId
from inferc.runtime.plan import Plan, PlannedSequence, Rows

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class StepShape:
    """How much of the buffers a step uses."""

    tokens: int
    sequences: int
    logit_rows: int
    decode: bool


def check_limits(plan: Plan, limits: Limits) -> None:
    """Buffers and arena were sized by these limits, so a plan beyond them must not run."""
    tokens = plan.tokens
    if not 0 < tokens <= limits.step_tokens or len(plan.sequences) > limits.sequences:
        raise InfercError(
            f"Step {plan.step}: expected 1 to {limits.step_tokens} tokens of at most"
            f" {limits.sequences} sequences, found {tokens} of {len(plan.sequences)}."
        )


class StepInputs:
    """The arrays of `inferc_step_args`, sized by the artifact's limits."""

    def __init__(self, limits: Limits, page_tokens: int) -> None:
        self._page_tokens = page_tokens
        rows, sequences = limits.step_tokens, limits.sequences
        self.table_stride = -(-limits.context_tokens // page_tokens)
        self.ids: Ints = np.zeros(rows, np.int32)
        self.positions: Ints = np.zeros(rows, np.int32)
        self.slots: Ints = np.zeros(rows, np.int32)
        self.sequence_starts: Ints = np.zeros(sequences + 1, np.int32)
        self.context_lengths: Ints = np.zeros(sequences, np.int32)
        self.block_tables: Ints = np.zeros((sequences, self.table_stride), np.int32)
        self.logit_indices: Ints = np.zeros(rows, np.int32)
        self.state_slots: Ints = np.zeros(sequences, np.int32)
        self._tables: list[tuple[BlockId, ...] | None] = [None] * sequences
        # What a decode step writes, as plain memory.
        self._row_views = (
            self.ids.data, self.positions.data, self.slots.data, self.logit_indices.data
        )  # fmt: skip
        self._sequence_views = (
            self.sequence_starts.data, self.context_lengths.data, self.state_slots.data
        )  # fmt: skip

    def fill(self, plan: Plan) -> StepShape:
        """Write a plan that keeps to the limits."""
        for index, entry in enumerate(plan.sequences):
            self._fill_table(index, entry.blocks)
        if plan.decodes:
            return self._fill_decode(plan.sequences)
        row = logit_rows = 0
        for index, entry in enumerate(plan.sequences):
            self.sequence_starts[index] = row
            self.context_lengths[index] = entry.start + entry.length
            self.state_slots[index] = entry.state_slot
            self._fill_rows(row, entry)
            logit_rows = self._fill_logit_indices(logit_rows, row, entry)
            row += entry.length
        self.sequence_starts[len(plan.sequences)] = row
        return StepShape(row, len(plan.sequences), logit_rows, False)

    def _fill_decode(self, entries: tuple[PlannedSequence, ...]) -> StepShape:
        """One row a sequence, a number at a time and without numpy.

        The weights of the step before have replaced all else in the caches, so that code costs by
        how much of it there is: with assignments of arrays one sequence took 70 us, and now 20.
        """
        page_tokens, none = self._page_tokens, Rows.NONE
        ids, positions, slots, logit_indices = self._row_views
        starts, lengths, states = self._sequence_views
        row = wanted = 0
        for entry in entries:
            start, blocks = entry.start, entry.blocks
            ids[row] = entry.token_ids[0]
            positions[row] = start
            slots[row] = blocks[start // page_tokens] * page_tokens + start % page_tokens
            lengths[row] = start + 1
            states[row] = entry.state_slot
            if entry.rows is not none:
                logit_indices[wanted] = row
                wanted += 1
            row += 1
            starts[row] = row
        return StepShape(row, row, wanted, True)

    def _fill_table(self, index: int, blocks: tuple[BlockId, ...]) -> None:
        """Tables change once a page, so most steps find the same tuple in the same place."""
        if self._tables[index] is not blocks:
            self.block_tables[index, : len(blocks)] = blocks
            self._tables[index] = blocks

    def _fill_rows(self, row: int, entry: PlannedSequence) -> None:
        end = row + entry.length
        page_tokens = self._page_tokens
        if entry.length == 1:
            page, offset = divmod(entry.start, page_tokens)
            self.ids[row] = entry.token_ids[0]
            self.positions[row] = entry.start
            self.slots[row] = entry.blocks[page] * page_tokens + offset
            return
        positions = np.arange(entry.start, entry.start + entry.length, dtype=np.int32)
        pages = np.array(entry.blocks, np.int32)[positions // page_tokens]
        self.ids[row:end] = entry.token_ids
        self.positions[row:end] = positions
        self.slots[row:end] = pages * page_tokens + positions % page_tokens

    def _fill_logit_indices(self, count: int, row: int, entry: PlannedSequence) -> int:
        if entry.rows is Rows.NONE:
            return count
        first = row if entry.rows is Rows.ALL else row + entry.length - 1
        wanted = row + entry.length - first
        self.logit_indices[count : count + wanted] = np.arange(first, first + wanted)
        return count + wanted
