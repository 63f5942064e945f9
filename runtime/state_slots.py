"""Slots of recurrent states: every running sequence has one. Integers only."""

from collections import Counter
from collections.abc import Iterable

from inferc.runtime.block_manager import InvariantError


def state_slots(sequences: int) -> int:
    """Slots an executor needs: one a sequence, and `spare_slot` for work outside the scheduler."""
    return sequences + 1


def spare_slot(sequences: int) -> int:
    """The slot that the scheduler never gives away."""
    return sequences


class StateSlots:
    """Hands out the slots `0 … total-1`."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total - 1, -1, -1))

    def take(self) -> int:
        """A free slot; the caller runs no more sequences than there are slots."""
        return self._free.pop()

    def give_back(self, slot: int) -> None:
        """The sequence has ended or was preempted: its state is no longer needed."""
        self._free.append(slot)

    def check(self, held: Iterable[int]) -> None:
        """Raise unless free and held slots are all slots, each once."""
        counts = Counter([*self._free, *held])
        if counts != Counter(range(self.total)):
            wrong = [s for s in {*counts, *range(self.total)} if counts[s] != 1]
            raise InvariantError(f"state slot {wrong[0]} is held or free {counts[wrong[0]]} times")
