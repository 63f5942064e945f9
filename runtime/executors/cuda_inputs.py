"""The integer inputs of a step as one block, so that they reach a device in one copy.

A decode step that is to be replayed as a graph is widened: more sequences and a longest context
from a short list of sizes, so that few graphs serve all batches. What is added computes on a page
and a state slot of its own, and nobody reads it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from inferc.runtime.artifact import Limits
from inferc.runtime.executors.memory import Bytes
from inferc.runtime.plan import Plan
from inferc.runtime.state_slots import spare_slot
from inferc.runtime.step_inputs import Ints, StepInputs, StepShape

_ALIGNMENT_INTS = 16
_LEAST_CONTEXT = 256


@dataclass(frozen=True, slots=True)
class StepSize:
    """Sizes of a step as it is launched: two decode steps of one size are one graph."""

    tokens: int
    sequences: int
    logit_rows: int
    table_stride: int
    longest_context: int
    decode: bool


@dataclass(frozen=True, slots=True)
class PackedStep:
    """A step's block: sizes, rows of logits that are wanted, offsets in bytes by argument."""

    size: StepSize
    logit_rows: int
    offsets: Mapping[str, int]
    nbytes: int
    replayable: bool


class PackedInputs:
    """Fills a block of host memory from plans. `spare_page` is one that no sequence has."""

    def __init__(self, limits: Limits, page_tokens: int, spare_page: int) -> None:
        self._limits = limits
        self._page_tokens = page_tokens
        self._spare_page = spare_page
        self._inputs = StepInputs(limits, page_tokens)
        most = StepSize(
            limits.step_tokens, limits.sequences, limits.step_tokens, self._inputs.table_stride,
            limits.context_tokens, False,
        )  # fmt: skip
        self.capacity_bytes = _offsets(most)[1]

    def pack(self, plan: Plan, block: Bytes, widen: bool) -> PackedStep:
        """Write a plan that keeps to the limits; with `widen`, decode steps to a common size."""
        shape = self._inputs.fill(plan)
        longest = max(entry.start + entry.length for entry in plan.sequences)
        replayable = widen and shape.decode and shape.logit_rows == shape.sequences
        size = self._widened(shape, longest) if replayable else self._exact(shape, longest)
        offsets, nbytes = _offsets(size)
        ints = block.view(np.int32)
        for name, offset in offsets.items():
            self._write(name, ints[offset // 4 :], shape, size)
        return PackedStep(size, shape.logit_rows, offsets, nbytes, replayable)

    def _exact(self, shape: StepShape, longest: int) -> StepSize:
        return StepSize(
            shape.tokens, shape.sequences, shape.logit_rows, self._pages(longest), longest,
            shape.decode,
        )  # fmt: skip

    def _widened(self, shape: StepShape, longest: int) -> StepSize:
        most = min(self._limits.sequences, self._limits.step_tokens)
        sequences = min(common_sequences(shape.sequences), most)
        context = min(common_context(longest), self._limits.context_tokens)
        return StepSize(sequences, sequences, sequences, self._pages(context), context, True)

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self._page_tokens)

    def _write(self, name: str, out: Ints, shape: StepShape, size: StepSize) -> None:
        """One argument; rows that were added are a token 0 at position 0 of the spare page."""
        inputs, rows, sequences = self._inputs, shape.tokens, shape.sequences
        slot = self._spare_page * self._page_tokens
        if name == "block_tables":
            table = out[: size.sequences * size.table_stride].reshape(-1, size.table_stride)
            table[:sequences] = inputs.block_tables[:sequences, : size.table_stride]
            table[sequences:] = self._spare_page
            return
        values, used, whole, spare = {
            "ids": (inputs.ids, rows, size.tokens, 0),
            "positions": (inputs.positions, rows, size.tokens, 0),
            "slots": (inputs.slots, rows, size.tokens, slot),
            "context_lengths": (inputs.context_lengths, sequences, size.sequences, 1),
            "state_slots": (
                inputs.state_slots, sequences, size.sequences, spare_slot(self._limits.sequences),
            ),
            "sequence_starts": (inputs.sequence_starts, sequences + 1, size.sequences + 1, 0),
            "logit_indices": (inputs.logit_indices, shape.logit_rows, size.logit_rows, 0),
        }[name]  # fmt: skip
        out[:used] = values[:used]
        out[used:whole] = (
            np.arange(used, whole) if name in ("sequence_starts", "logit_indices") else spare
        )


def common_sequences(count: int) -> int:
    """The least of 1 … 8, then multiples of 8, of 32 beyond 64, that is not below `count`."""
    step = 1 if count <= 8 else 8 if count <= 64 else 32
    return -(-count // step) * step


def common_context(tokens: int) -> int:
    """The least power of two from 256 on that is not below `tokens`."""
    return max(_LEAST_CONTEXT, 1 << (tokens - 1).bit_length())


def _offsets(size: StepSize) -> tuple[dict[str, int], int]:
    """Offset of each argument in bytes, and of the end; what is largest comes last."""
    counts = {
        "ids": size.tokens,
        "positions": size.tokens,
        "slots": size.tokens,
        "sequence_starts": size.sequences + 1,
        "context_lengths": size.sequences,
        "state_slots": size.sequences,
        "logit_indices": size.logit_rows,
        "block_tables": size.sequences * size.table_stride,
    }
    offsets, end = {}, 0
    for name, count in counts.items():
        offsets[name] = 4 * end
        end += -(-count // _ALIGNMENT_INTS) * _ALIGNMENT_INTS
    return offsets, 4 * end
