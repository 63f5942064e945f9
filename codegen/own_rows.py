"""Calls of a CPU step that every worker runs whole where rows are few, which saves a barrier.

A norm of one row takes a worker a third of a microsecond, and what waits for it a barrier: some
microseconds, and more where workers are not in step. Where such calls move few bytes (known when a
step runs, the same on all workers) each worker therefore computes all rows, into memory of its
own; whoever reads them needs no barrier. The operations of a row are the same, and so its bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from inferc.codegen.units import Units
from inferc.ir.core import Func, Op, Value
from inferc.ir.dims import Size, evaluate
from inferc.ir.types import TensorType
from inferc.passes.plan_memory import groups, viewed

OWN_BYTES = 32768
"""Most bytes that such a call may move: about two microseconds of one worker, in its caches."""
MOST_SLOTS = 4
"""Results that may be alive at once; each has `OWN_BYTES` of a worker's stack."""


@dataclass(frozen=True)
class OwnRows:
    """The slot of each result that workers have copies of.

    Workers share the calls as any other where one of `moved_bytes` is above `limit_bytes`.
    """

    slots: Mapping[Value, int]
    moved_bytes: tuple[Size, ...]
    limit_bytes: int

    @property
    def slot_count(self) -> int:
        """Slots in use."""
        return max(self.slots.values(), default=-1) + 1


def own_rows(func: Func, units: Units) -> OwnRows:
    """The calls of a function that qualify with one row, as long as there are slots; CPU only."""
    if units.options.target.kind != "cpu":
        return OwnRows({}, (), 0)
    calls = list(groups(func))
    last_use = {viewed(v): i for i, op in enumerate(calls) for v in op.operands}
    returned = {viewed(v) for v in func.results}
    one = dict.fromkeys(func.symbols, 1)
    until = [-1] * MOST_SLOTS  # the last reader of what is in each slot
    slots: dict[Value, int] = {}
    moved: dict[Size, None] = {}
    for index, op in enumerate(calls):
        group, unit = units.of_op[op]
        bytes_moved = unit.definition.cost(group).bytes_moved
        free = [slot for slot in range(MOST_SLOTS) if until[slot] < index]
        if not (
            unit.definition.own_rows
            and _stays_inside(op, returned, last_use)
            and evaluate(bytes_moved, one) <= OWN_BYTES
            and len(op.results) <= len(free)
        ):
            continue
        moved[bytes_moved] = None
        for result, slot in zip(op.results, free, strict=False):
            slots[result] = slot
            until[slot] = last_use[result]
    return OwnRows(slots, tuple(moved), OWN_BYTES)


def _stays_inside(op: Op, returned: set[Value], last_use: Mapping[Value, int]) -> bool:
    """Whether all results are tensors that only calls of this function read."""
    return all(
        isinstance(r.type, TensorType) and r not in returned and r in last_use for r in op.results
    )
