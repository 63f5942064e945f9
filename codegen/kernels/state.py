"""Recurrent ops: one kernel a core for both phases, reading its operands where they lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from inferc.codegen.group import Group, through_reshape
from inferc.codegen.kernel import Answer, KernelDef, KernelOptions, Ok, Refusal, WeightUse
from inferc.codegen.operand_rows import OperandRows, Unfit, operand_rows
from inferc.ir.card import Attrs
from inferc.ir.core import Op
from inferc.ir.ops.recurrent import SERVED, Recurrence

Constants = Callable[[Mapping[str, int], Attrs], tuple[str, ...]]
_INSIDE = frozenset({"core.slice", "core.reshape", *SERVED})
_STEP_OPERANDS = 3  # positions, sequence_starts, state_slots


@dataclass(frozen=True)
class StateParams:
    """Variables of `state.cpp.j2`; indices are of the kernel's arguments."""

    name: str
    function: str
    constants: tuple[str, ...]
    state: int
    positions: int
    sequence_starts: int
    state_slots: int
    rows: tuple[OperandRows, ...]
    weights: tuple[int | None, ...]
    out: int


def _core(group: Group) -> Op:
    return next(op for op in group.body.ops if op.name in SERVED)


def _params(group: Group, options: KernelOptions, name: str) -> StateParams:
    op = _core(group)
    core = SERVED[op.name]
    strange = [o.name for o in group.body.ops if o.name not in _INSIDE]
    if strange:
        raise Unfit(f"{strange[0]} beside the recurrence")
    results = [through_reshape(r) for r in group.body.results]
    if results != list(op.results):
        raise Unfit("expected the results (y, state)")
    count = len(core.rows)
    state, *rest = op.operands
    rows, step = rest[:count], rest[count : count + _STEP_OPERANDS]
    weights = rest[count + _STEP_OPERANDS :]
    for value in (state, *step, *weights):
        if through_reshape(value).producer is not None:
            raise Unfit(f"%{value.hint} is computed inside the group")
    if not all(group.is_weight(through_reshape(w)) for w in weights):
        raise Unfit("a weight that is no parameter")
    positions, starts, slots = (through_reshape(v).index for v in step)
    given = tuple(through_reshape(w).index for w in weights)
    missing = (None,) * (len(core.weights) - len(given))
    return StateParams(
        name, core.name, _CONSTANTS[core.name](_sizes(core, op), op.attrs), state.index, positions,
        starts, slots, tuple(operand_rows(v) for v in rows), (*given, *missing),
        len(group.op.operands),
    )  # fmt: skip


def _sizes(core: Recurrence, op: Op) -> Mapping[str, int]:
    count = len(core.rows)
    rest = op.operands[1:]
    types = [v.type for v in (*rest[:count], *rest[count + _STEP_OPERANDS :])]
    return core.numbers(core.bind(op.name, types, ("T",)))


def _supports(group: Group, options: KernelOptions) -> Answer:
    try:
        _params(group, options, "probe")
    except Unfit as error:
        return Refusal(str(error))
    return Ok()


def _weights(group: Group) -> tuple[WeightUse, ...]:
    return tuple(
        WeightUse("vector", (arg.index,)) for arg in group.body.args if group.is_weight(arg)
    )


# Template arguments of the functions in `state.h`.
_CONSTANTS: dict[str, Constants] = {
    "causal_conv1d": lambda n, attrs: (
        str(n["C"]), str(n["K"]), f"ConvActivation::{attrs['activation']}",
    ),
    "selective_scan": lambda n, attrs: (str(n["C"]), str(n["N"])),
    "gated_delta_rule": lambda n, attrs: tuple(str(n[axis]) for axis in "HGKVM"),
    "linear_scan": lambda n, attrs: (str(n["C"]),),
    "ssd_scan": lambda n, attrs: tuple(str(n[axis]) for axis in "HPGN"),
}  # fmt: skip

STATE = KernelDef(
    name="state",
    summary="recurrence over the tokens of each sequence, from state to state",
    priority=10,
    matches=lambda group: sum(op.name in SERVED for op in group.body.ops) == 1,
    supports=_supports,
    params=_params,
    template="state.cpp.j2",
    weights=_weights,
)
