"""Give every intermediate result a place in the arena.

```
%n = fuse.group(..) {kind = "norm"}     ->   %n = fuse.group(..) {.., offsets = (131072,)}
```

A buffer lives from the group that writes it to the last group that reads it; buffers whose lives
overlap get ranges that do not. Groups between which no data flows run without a barrier, so a
buffer is busy from the first to the last such run of groups: sharing never costs a barrier. A
reshape is a view of its operand and keeps that alive. Logits and caches are memory of the caller:
their offset is `none`. Sizes are those at the upper ends of the ranges of the symbols, so that one
plan fits every step; both phases use the same arena.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from inferc.ir.core import Func, Module, Op, Value
from inferc.ir.dims import evaluate
from inferc.ir.types import TensorType
from inferc.passes.base import Pass, PassContext
from inferc.passes.rebuild import step_funcs

ALIGNMENT_BYTES = 64


@dataclass(frozen=True)
class PlanMemory(Pass):
    """Sets the attribute `offsets` of all groups."""

    name = "plan-memory"
    requires = frozenset({"fused"})
    ensures = frozenset({"memory-planned"})

    def run(self, module: Module, context: PassContext) -> None:
        """Plan each step function."""
        for func in step_funcs(module):
            rewriter = context.rewriter(func)
            rewriter.spend()
            lives = lifetimes(func)
            offsets = place(lives)
            for op in groups(func):
                places = tuple(offsets.get(r) for r in op.results)
                if op.attrs["offsets"] != places:
                    rewriter.set_attrs(op, offsets=places)
                    context.hit("place")


@dataclass(frozen=True)
class Life:
    """A buffer: its value, size, and the steps (groups in order) of its writer and last reader.

    `first_run` and `last_run` count runs of groups that need no barrier between them.
    """

    value: Value
    nbytes: int
    first_step: int
    last_step: int
    first_run: int
    last_run: int


@dataclass(frozen=True)
class Buffer:
    """A placed buffer, as the report shows it."""

    name: str
    phase: str
    offset_bytes: int
    nbytes: int
    first_step: int
    last_step: int


@dataclass(frozen=True)
class MemoryPlan:
    """What the offsets in a module amount to."""

    arena_bytes: int
    buffers: tuple[Buffer, ...]


def groups(func: Func) -> list[Op]:
    """The groups of a step function: its steps, in order."""
    return [op for op in func.ops if op.body is not None]


def viewed(value: Value) -> Value:
    """The value whose memory `value` is, through reshapes."""
    while value.producer is not None and value.producer.name == "core.reshape":
        value = value.producer.operands[0]
    return value


def lifetimes(func: Func) -> list[Life]:
    """All buffers of the arena, in order of their writers."""
    highest = {name: symbol.high for name, symbol in func.symbols.items()}
    outside = {viewed(r) for r in func.results}
    last: dict[Value, int] = {}
    steps, run_of = groups(func), runs(func)
    for step, op in enumerate(steps):
        last |= {viewed(v): step for v in op.operands}
    lives: list[Life] = []
    for step, op in enumerate(steps):
        for value in op.results:
            if isinstance(value.type, TensorType) and value not in outside:
                nbytes = _aligned(evaluate(value.type.nbytes, highest))
                end = last.get(value, step)
                lives.append(Life(value, nbytes, step, end, run_of[step], run_of[end]))
    return lives


def runs(func: Func) -> list[int]:
    """For each group, the number of groups so far that had to wait for data of their run."""
    numbers: list[int] = []
    written: set[Value] = set()
    for op in groups(func):
        waits = any(viewed(v) in written for v in op.operands)
        numbers.append((numbers[-1] if numbers else 0) + waits)
        if waits:
            written = set()
        written |= set(op.results)
    return numbers


def place(lives: Iterable[Life]) -> dict[Value, int]:
    """Offsets: largest buffers first, each at the lowest range free during its life."""
    offsets: dict[Value, int] = {}
    busy: dict[int, list[tuple[int, int]]] = {}  # run -> ranges taken
    for life in sorted(lives, key=lambda x: (-x.nbytes, x.first_step, x.value.index)):
        alive = range(life.first_run, life.last_run + 1)
        taken = sorted({span for run in alive for span in busy.get(run, ())})
        offset = 0
        for start, stop in taken:
            if start - offset >= life.nbytes:
                break
            offset = max(offset, stop)
        offsets[life.value] = offset
        for run in alive:
            busy.setdefault(run, []).append((offset, offset + life.nbytes))
    return offsets


def memory_plan(module: Module) -> MemoryPlan:
    """The plan that a module carries in its `offsets`. Raises ValueError before plan-memory."""
    buffers: list[Buffer] = []
    for func in step_funcs(module):
        for life in lifetimes(func):
            op, value = life.value.producer, life.value
            places = op.attrs["offsets"] if op is not None else ()
            if not isinstance(places, tuple) or len(places) <= value.index:
                raise ValueError(
                    f"@{func.name}: %{value.hint} has no offset; run plan-memory first"
                )
            offset = places[value.index]
            assert isinstance(offset, int)
            span = life.first_step, life.last_step
            buffers.append(Buffer(value.hint, func.name, offset, life.nbytes, *span))
    arena = max((b.offset_bytes + b.nbytes for b in buffers), default=0)
    return MemoryPlan(arena, tuple(buffers))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
