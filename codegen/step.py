"""The step functions: a list of kernel calls over arena offsets, with barriers where data flows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from inferc.codegen.group import Group, tensor, through_reshape
from inferc.codegen.own_rows import own_rows
from inferc.codegen.pack_weights import PackPlan
from inferc.codegen.units import Units
from inferc.errors import CompileError
from inferc.ir.core import Func, Op, Value
from inferc.ir.dims import Size
from inferc.ir.types import CacheType, Memory, StateType, TensorType
from inferc.passes.analysis.barriers import barriers
from inferc.passes.plan_memory import ALIGNMENT_BYTES, groups
from inferc.passes.step_arguments import STEP_ARGUMENTS

_SYMBOLS = {"T": "a.tokens", "R": "a.sequences", "L": "a.logit_rows", "P": "a.table_stride"}


@dataclass(frozen=True)
class Call:
    """One kernel call of a step function.

    `barrier` stands before it where workers share all calls, `own_barrier` where each runs those
    marked `own` whole (`own_rows.py`).
    """

    kernel: str
    comment: str
    rows: str
    pointers: tuple[str, ...]
    barrier: bool
    own_barrier: bool
    own: bool


@dataclass(frozen=True)
class Phase:
    """One step function.

    Workers run the calls marked `own` whole where none of the expressions `own_moved_bytes` is
    above `own_bytes`; the results are then in `own_slots` of that size.
    """

    name: str
    calls: tuple[Call, ...]
    own_slots: int = 0
    own_bytes: int = 0
    own_moved_bytes: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepParams:
    """Variables of `step.cpp.j2`."""

    kernels: tuple[str, ...]
    step_tokens: int
    sequences: int
    table_pages: int
    weights: int
    caches: int
    states: int
    vocab: int
    worker_scratch: tuple[str, ...]
    shared_scratch: tuple[str, ...]
    phases: tuple[Phase, ...]


def plan_step(functions: Sequence[Func], units: Units, weights: PackPlan) -> StepParams:
    """Everything the step's template needs. Offsets must have been planned."""
    prefill = functions[0]
    scratches = list(units.scratches())
    phases = tuple(_Planner(func, units, weights).phase() for func in functions)
    vocab = tensor(prefill.results[0]).shape[-1]
    assert isinstance(vocab, int)
    greedy_bytes = 8 * prefill.symbols["T"].high  # sampling.h
    return StepParams(
        tuple(sorted(units.by_name)), prefill.symbols["T"].high, prefill.symbols["R"].high,
        prefill.symbols["P"].high, len(weights.items), len(cache_arguments(prefill)),
        len(state_arguments(prefill)), vocab,
        tuple(sorted({s.per_worker for s in scratches} - {"0"} | {str(greedy_bytes)})),
        tuple(sorted({s.shared for s in scratches} - {"0"})), phases,
    )  # fmt: skip


def cache_arguments(func: Func) -> list[Value]:
    """The caches in the order of the ABI."""
    return [a for a in func.args if isinstance(a.type, CacheType)]


def state_arguments(func: Func) -> list[Value]:
    """The recurrent states in the order of the ABI."""
    return [a for a in func.args if isinstance(a.type, StateType)]


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
    append = next(op for op in group.body.ops if op.card.stateful)
    return tensor(group.operand(append.operands[-1])).shape[0]


@dataclass
class _Planner:
    """Walks one function; `places` are addresses of values as C++ expressions."""

    func: Func
    units: Units
    weights: PackPlan
    places: dict[Value, str] = field(default_factory=dict)

    def phase(self) -> Phase:
        self._place_arguments()
        self.logits = through_reshape(self.func.results[0])
        self.own = own_rows(self.func, self.units)
        waits = zip(self._waits(()), self._waits(self.own.slots), strict=True)
        calls = []
        for op in self.func.ops:
            if op.name == "core.reshape":
                self.places[op.result] = self.places[op.operands[0]]
            elif op.body is not None:
                calls.append(self._call(op, *next(waits)))
        moved = tuple(map(size_expression, self.own.moved_bytes))
        own = self.own
        return Phase(self.func.name, tuple(calls), own.slot_count, own.limit_bytes, moved)

    def _waits(self, own: Collection[Value]) -> list[bool]:
        """For each call, whether a barrier must come before it."""
        found = []
        sharing = False  # a kernel since the last barrier works in the scratch that all share
        for op, flows in zip(groups(self.func), barriers(self.func, own), strict=True):
            shares = self._shares(op)
            found.append(flows or (sharing and shares))
            sharing = shares or (sharing and not found[-1])
        return found

    def _shares(self, op: Op) -> bool:
        group, unit = self.units.of_op[op]
        return unit.definition.scratch(group, self.units.options).shared != "0"

    def _place_arguments(self) -> None:
        for index, value in enumerate(cache_arguments(self.func)):
            self.places[value] = f"C({index})"
        for index, value in enumerate(state_arguments(self.func)):
            self.places[value] = f"S({index})"
        for value in self.func.args:
            if not isinstance(value.type, Memory):
                assert value.hint in STEP_ARGUMENTS, value
                self.places[value] = f"I(a.{value.hint})"

    def _call(self, op: Op, barrier: bool, own_barrier: bool) -> Call:
        group, unit = self.units.of_op[op]
        self._place_results(group)
        inputs = [self._operand(group, i) for i in range(len(op.operands))]
        outputs = [self.places[r] for r in op.results]
        label = ", ".join(group.modules[:3]) + (", …" if len(group.modules) > 3 else "")
        return Call(
            unit.name, f"{group.kind or unit.definition.name}: {label}",
            size_expression(row_count(group)), (*inputs, *outputs), barrier, own_barrier,
            any(r in self.own.slots for r in op.results),
        )  # fmt: skip

    def _operand(self, group: Group, index: int) -> str:
        value = group.op.operands[index]
        if value.producer is not None and value.producer.name == "param":
            return f"W({self.weights.number(group, index)})"
        return self.places[value]

    def _place_results(self, group: Group) -> None:
        for i, result in enumerate(group.op.results):
            if isinstance(result.type, Memory):
                self.places[result] = self.places[self._memory_operand(group, i)]
            elif result is self.logits:
                self.places[result] = "a.logits"
            else:
                offset, slot = self._offset(group, i), self.own.slots.get(result)
                self.places[result] = f"A({offset})" if slot is None else f"O({slot}, {offset})"

    def _offset(self, group: Group, result: int) -> int:
        offsets = group.op.attrs["offsets"]
        assert isinstance(offsets, tuple)
        offset = offsets[result] if result < len(offsets) else None
        if not isinstance(offset, int) or offset % ALIGNMENT_BYTES:
            raise CompileError(
                f"@{self.func.name}: result {result} of a group of kind '{group.kind}' has the"
                f" arena offset {offset!r}, expected a multiple of {ALIGNMENT_BYTES}. Run"
                " plan-memory before code generation."
            )
        return offset

    def _memory_operand(self, group: Group, result: int) -> Value:
        """The version of the cache or state that a result is the next version of."""
        value = group.body.results[result]
        while value.producer is not None:
            value = value.producer.operands[0]
        return group.operand(value)
