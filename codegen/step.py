"""The step functions: a list of kernel calls over arena offsets, with barriers where data flows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from inferc.codegen.group import Group, tensor
from inferc.codegen.pack_weights import PackPlan
from inferc.codegen.units import Units
from inferc.errors import CompileError
from inferc.ir.core import Func, Op, Value
from inferc.ir.dims import Dim, Size, evaluate
from inferc.ir.types import CacheType, TensorType

INPUTS = (
    "ids", "positions", "slots", "sequence_starts", "context_lengths", "block_tables",
    "logit_indices",
)  # fmt: skip
_SYMBOLS = {"T": "a.tokens", "R": "a.sequences", "L": "a.logit_rows", "P": "a.table_stride"}


@dataclass(frozen=True)
class Region:
    """Bytes of a space (arena, logits, a cache, an input) that a call reads or writes."""

    space: str
    begin: int = 0
    end: int = 1

    def overlaps(self, other: Region) -> bool:
        """Whether both share a byte."""
        return self.space == other.space and self.begin < other.end and other.begin < self.end


@dataclass(frozen=True)
class Place:
    """Where a value lies: the C++ expression of its address, and the region."""

    expression: str
    region: Region


@dataclass(frozen=True)
class Call:
    """One kernel call of a step function."""

    kernel: str
    comment: str
    rows: str
    pointers: tuple[str, ...]
    barrier: bool


@dataclass(frozen=True)
class Phase:
    """One step function, and the bytes of arena it uses."""

    name: str
    calls: tuple[Call, ...]
    arena_bytes: int


@dataclass(frozen=True)
class StepParams:
    """Variables of `step.cpp.j2`."""

    kernels: tuple[str, ...]
    step_tokens: int
    sequences: int
    table_pages: int
    weights: int
    caches: int
    worker_scratch: tuple[str, ...]
    shared_scratch: tuple[str, ...]
    phases: tuple[Phase, ...]


def plan_step(functions: Sequence[Func], units: Units, weights: PackPlan) -> StepParams:
    """Everything the step's template needs. Offsets must have been planned."""
    prefill = functions[0]
    scratches = list(units.scratches())
    phases = tuple(_Planner(func, units, weights).phase() for func in functions)
    return StepParams(
        tuple(sorted(units.by_name)), prefill.symbols["T"].high, prefill.symbols["R"].high,
        prefill.symbols["P"].high, len(weights.items), len(cache_arguments(prefill)),
        tuple(sorted({s.per_worker for s in scratches} - {"0"})),
        tuple(sorted({s.shared for s in scratches} - {"0"})), phases,
    )  # fmt: skip


def cache_arguments(func: Func) -> list[Value]:
    """The caches in the order of the ABI."""
    return [a for a in func.args if isinstance(a.type, CacheType)]


def size_expression(size: Size) -> str:
    """A size as a C++ expression of the step's arguments."""
    if isinstance(size, int):
        return str(size)
    terms = []
    for monomial, factor in size.terms:
        names = [_SYMBOLS[name] for name in monomial]
        terms.append(" * ".join([str(factor), *names] if factor != 1 or not names else names))
    return " + ".join(terms)


def row_count(group: Group) -> Size:
    """First axis of the first tensor result; a pure cache write has a row for each slot."""
    for result in group.op.results:
        if isinstance(result.type, TensorType):
            return result.type.shape[0]
    slots = group.ops("serve.kv_append")[0].operands[3]
    return tensor(group.operand(slots)).shape[0]


@dataclass
class _Planner:
    """Walks one function. `pending_*` are regions touched since the last barrier."""

    func: Func
    units: Units
    weights: PackPlan
    places: dict[Value, Place] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    arena_bytes: int = 0
    pending_reads: list[Region] = field(default_factory=list)
    pending_writes: list[Region] = field(default_factory=list)

    def phase(self) -> Phase:
        self._place_arguments()
        self.logits = self._source(self.func.results[0])
        for op in self.func.ops:
            if op.name == "core.reshape":
                self.places[op.result] = self.places[op.operands[0]]
            elif op.body is not None:
                self._group(op)
        return Phase(self.func.name, tuple(self.calls), self.arena_bytes)

    def _place_arguments(self) -> None:
        for index, value in enumerate(cache_arguments(self.func)):
            self.places[value] = Place(f"C({index})", Region(f"cache {index}"))
        plain = [a for a in self.func.args if not isinstance(a.type, CacheType)]
        for value, name in zip(plain, INPUTS, strict=True):
            self.places[value] = Place(f"I(a.{name})", Region(f"input {name}"))

    def _source(self, value: Value) -> Value:
        while value.producer is not None and value.producer.name == "core.reshape":
            value = value.producer.operands[0]
        return value

    def _group(self, op: Op) -> None:
        group, unit = self.units.of_op[op]
        self._place_results(group)
        inputs = [self._operand(group, i) for i in range(len(op.operands))]
        outputs = [self.places[r] for r in op.results]
        barrier = self._needs_barrier([p.region for p in inputs], [p.region for p in outputs])
        label = ", ".join(group.modules[:3]) + (", …" if len(group.modules) > 3 else "")
        self.calls.append(
            Call(
                unit.name, f"{group.kind or unit.definition.name}: {label}",
                size_expression(row_count(group)),
                tuple(p.expression for p in [*inputs, *outputs]), barrier,
            )
        )  # fmt: skip

    def _operand(self, group: Group, index: int) -> Place:
        value = group.op.operands[index]
        if value.producer is not None and value.producer.name == "param":
            number = self.weights.number(group, index)
            return Place(f"W({number})", Region(f"weight {number}"))
        return self.places[value]

    def _place_results(self, group: Group) -> None:
        offsets = group.op.attrs["offsets"]
        assert isinstance(offsets, tuple)
        for i, result in enumerate(group.op.results):
            if isinstance(result.type, CacheType):
                self.places[result] = self.places[self._cache_operand(group, i)]
            elif result is self.logits:
                self.places[result] = Place("a.logits", Region("logits"))
            else:
                self.places[result] = self._arena(group, result, i, offsets)

    def _arena(self, group: Group, result: Value, i: int, offsets: tuple[object, ...]) -> Place:
        offset = offsets[i] if i < len(offsets) else None
        if not isinstance(offset, int) or offset % 64:
            raise CompileError(
                f"@{self.func.name}: %{result.hint} of {group.kind} has the arena offset {offset!r},"
                " expected a multiple of 64. Run plan-memory before code generation."
            )
        end = offset + self._largest(tensor(result).nbytes)
        self.arena_bytes = max(self.arena_bytes, end)
        return Place(f"A({offset})", Region("arena", offset, end))

    def _largest(self, size: Size) -> int:
        names = size.symbols() if isinstance(size, Dim) else ()
        return evaluate(size, {name: self.func.symbols[name].high for name in names})

    def _cache_operand(self, group: Group, result: int) -> Value:
        """The version of the cache that a result is the next version of."""
        value = group.body.results[result]
        while value.producer is not None:
            value = value.producer.operands[0]
        return group.operand(value)

    def _needs_barrier(self, reads: list[Region], writes: list[Region]) -> bool:
        """Whether a hazard with a call since the last barrier exists; keeps the books."""
        hazard = _meet(reads, self.pending_writes) or _meet(
            writes, self.pending_writes + self.pending_reads
        )
        if hazard:
            self.pending_reads, self.pending_writes = [], []
        self.pending_reads += reads
        self.pending_writes += writes
        return hazard


def _meet(some: list[Region], others: list[Region]) -> bool:
    return any(a.overlaps(b) for a in some for b in others)
