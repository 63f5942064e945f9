"""Where the workers of a step must wait for each other.

All workers run all groups in order, each its share. A group must wait if it reads what a group
since the last barrier wrote, writes what one of those read, or writes what one of those wrote.
Memory counts, not values: two buffers that share a range of the arena are one. Values that each
worker computes whole, into memory of its own, are not in the arena: nobody waits for them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from inferc.ir.core import Func, Op, Value
from inferc.ir.dims import evaluate
from inferc.ir.types import Memory, TensorType
from inferc.passes.plan_memory import groups, viewed

Place = tuple[str | int, int, int]
"""A range of bytes: the memory it is in (`arena`, or the index of a cache), start, stop."""


@dataclass
class _Open:
    """Ranges touched since the last barrier."""

    reads: list[Place] = field(default_factory=list)
    writes: list[Place] = field(default_factory=list)


def barriers(func: Func, own: Collection[Value] = ()) -> tuple[bool, ...]:
    """For each group in order, whether a barrier must come before it. Needs plan-memory.

    `own` are results of groups that each worker computes whole for itself.
    """
    highest = {name: symbol.high for name, symbol in func.symbols.items()}
    cache_of = {a: a.index for a in func.args if isinstance(a.type, Memory)}
    found: list[bool] = []
    open_ = _Open()
    for op in groups(func):
        cache_of |= _versions(op, cache_of)
        reads = _places((v for v in op.operands if viewed(v) not in own), cache_of, highest)
        writes = _places((v for v in op.results if v not in own), cache_of, highest)
        waits = _meet(reads, open_.writes) or _meet(writes, [*open_.reads, *open_.writes])
        found.append(waits)
        if waits:
            open_ = _Open()
        open_.reads += reads
        open_.writes += writes
    return tuple(found)


def _versions(op: Op, cache_of: dict[Value, int]) -> dict[Value, int]:
    """Which cache argument each cache result of a group is a version of."""
    assert op.body is not None
    inner = {
        a: cache_of[v] for a, v in zip(op.body.args, op.operands, strict=True) if v in cache_of
    }
    for step in op.body.ops:
        source = next((inner[v] for v in step.operands if v in inner), None)
        if source is not None:
            inner |= {r: source for r in step.results if isinstance(r.type, Memory)}
    pairs = zip(op.results, op.body.results, strict=True)
    return {outer: inner[r] for outer, r in pairs if r in inner}


def _places(
    values: Iterable[Value], cache_of: dict[Value, int], highest: dict[str, int]
) -> list[Place]:
    found: list[Place] = []
    for value in map(viewed, values):
        if value in cache_of:
            found.append((cache_of[value], 0, 1))
        elif value.producer is not None and value.producer.body is not None:
            offsets = value.producer.attrs["offsets"]
            assert isinstance(offsets, tuple) and isinstance(value.type, TensorType)
            offset = offsets[value.index]
            if isinstance(offset, int):
                found.append(("arena", offset, offset + evaluate(value.type.nbytes, highest)))
    return found


def _meet(some: list[Place], others: list[Place]) -> bool:
    return any(a[0] == b[0] and a[1] < b[2] and b[1] < a[2] for a in some for b in others)
