"""A plan: all an executor needs to run one step. Frozen, loggable, replayable, comparable."""

import json
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from inferc.runtime.block_manager import BlockId
from inferc.runtime.request import SequenceId


class Rows(Enum):
    """Rows of a sequence for which logits are wanted."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class PlannedSequence:
    """Run `token_ids` at positions `start …`; `blocks` are its pages in order of position.

    `state_slot` is where its recurrent states are; from `start` 0 they begin with zeros.
    """

    sequence: SequenceId
    start: int
    token_ids: tuple[int, ...]
    blocks: tuple[BlockId, ...]
    rows: Rows
    state_slot: int

    @property
    def length(self) -> int:
        """Tokens run in this step."""
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Plan:
    """One step. `preempted` lists sequences that lost their pages when it was made."""

    step: int
    sequences: tuple[PlannedSequence, ...]
    preempted: tuple[SequenceId, ...] = ()

    @property
    def tokens(self) -> int:
        """Rows of the step."""
        return sum([len(entry.token_ids) for entry in self.sequences])

    @property
    def phase(self) -> str:
        """`decode` when every sequence has one new token, otherwise `prefill`."""
        return "decode" if self.decodes else "prefill"

    @property
    def decodes(self) -> bool:
        """Whether every sequence has one new token."""
        return all([len(entry.token_ids) == 1 for entry in self.sequences])

    @property
    def sampled(self) -> tuple[SequenceId, ...]:
        """Sequences that get a token, in the order of their logits."""
        return tuple(entry.sequence for entry in self.sequences if entry.rows is Rows.LAST)

    def to_json(self) -> str:
        """One line for a log."""
        return json.dumps(asdict(self), default=lambda rows: rows.value)


def plan_from_json(line: str) -> Plan:
    """Read back a logged plan."""
    data = json.loads(line)
    entries = tuple(_entry_from_json(entry) for entry in data["sequences"])
    return Plan(data["step"], entries, tuple(data["preempted"]))


def _entry_from_json(data: dict[str, Any]) -> PlannedSequence:
    return PlannedSequence(
        SequenceId(data["sequence"]),
        data["start"],
        tuple(data["token_ids"]),
        tuple(map(BlockId, data["blocks"])),
        Rows(data["rows"]),
        data["state_slot"],
    )
