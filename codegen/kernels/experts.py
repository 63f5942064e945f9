"""Mixtures of experts: grouped products over the experts that the rows of a step chose."""

from __future__ import annotations

from dataclasses import dataclass

from inferc.codegen.expressions import literal
from inferc.codegen.group import Group, float_attr, static_size, tensor
from inferc.codegen.kernel import (
    Answer,
    KernelDef,
    KernelOptions,
    Ok,
    Refusal,
    Scratch,
    WeightUse,
)
from inferc.codegen.kernels.linear import integer_arithmetic, math_of
from inferc.codegen.packing import FORMATS
from inferc.ir.core import Op, Value
from inferc.ir.ops.experts import ExpertOperands, expert_operands

_ACTIVATIONS = {
    "silu": "silu({0})",
    "gelu": "gelu_erf({0})",
    "gelu_tanh": "gelu_tanh({0})",
    "relu": "relu({0})",
    "sigmoid": "sigmoid({0})",
    "relu2": "relu({0}) * relu({0})",
}


@dataclass(frozen=True)
class ExpertsParams:
    """Variables of `experts.cpp.j2`; indices are of the kernel's arguments."""

    name: str
    lines: tuple[str, ...]
    x: int
    indices: int
    weights: int
    up: int
    down: int
    biases: tuple[tuple[str, int], ...]
    out: int
    chosen: int
    experts: int
    hidden: int
    inner: int
    gated: str
    biased: str
    up_format: str
    up_math: str
    down_format: str
    down_math: str


def _op(group: Group) -> Op:
    return group.ops("nn.experts")[0]


def _named(group: Group) -> ExpertOperands[Value]:
    op = _op(group)
    return expert_operands(op.operands, op.attrs)


def _matrices(group: Group) -> list[Value]:
    named = _named(group)
    return [v for v in (named.gate, named.up, named.down) if v is not None]


def _supports(group: Group, options: KernelOptions) -> Answer:
    named = _named(group)
    if len(group.body.ops) != 1:
        return Refusal("other ops beside the experts")
    if tensor(named.indices).dtype != "i64" or tensor(named.x).rank != 2:
        return Refusal(f"rows of {named.x.type} with indices of {named.indices.type}")
    for matrix in _matrices(group):
        if not group.is_weight(matrix):
            return Refusal(f"%{matrix.hint} is no parameter")
        if tensor(matrix).dtype not in FORMATS:
            return Refusal(f"there is no packed layout for weights of {matrix.type}")
    if named.gate is not None and named.gate.type != named.up.type:
        return Refusal(f"gate and up differ in type: {named.gate.type} and {named.up.type}")
    return Ok()


def _gate_lines(op: Op) -> tuple[str, ...]:
    """Statements of the function between the products."""
    if not op.attrs["gated"]:
        return ("(void)gate;", f"return {_ACTIVATIONS[str(op.attrs['activation'])].format('up')};")
    lines = []
    if op.attrs["limit"] is not None:
        limit = literal(float_attr(op, "limit"))
        lines.append(f"gate = min(gate, splat({limit}));")
        lines.append(f"up = max(min(up, splat({limit})), splat(-{limit}));")
    activation = _ACTIVATIONS[str(op.attrs["activation"])].format("gate")
    if float_attr(op, "alpha") != 1.0:
        activation = f"gate * sigmoid(gate * splat({literal(float_attr(op, 'alpha'))}))"
    if float_attr(op, "offset") != 0.0:
        lines.append(f"up = up + splat({literal(float_attr(op, 'offset'))});")
    return (*lines, f"return {activation} * up;")


def _params(group: Group, options: KernelOptions, name: str) -> ExpertsParams:
    op, named = _op(group), _named(group)
    biases = tuple(
        (member, value.index)
        for member in ("gate_bias", "up_bias", "down_bias")
        if (value := getattr(named, member)) is not None
    )
    up, down = tensor(named.up).dtype, tensor(named.down).dtype
    return ExpertsParams(
        name, _gate_lines(op), named.x.index, named.indices.index, named.weights.index,
        named.up.index, named.down.index, biases, len(group.op.operands), *_sizes(group),
        str(bool(op.attrs["gated"])).lower(), str(bool(op.attrs["biased"])).lower(),
        up.upper(), math_of(group, up, options), down.upper(), math_of(group, down, options),
    )  # fmt: skip


def _sizes(group: Group) -> tuple[int, int, int, int]:
    """Experts a row, experts, size of a row, size between the products."""
    named = _named(group)
    experts, hidden, inner = (static_size(named.down, i) for i in range(3))
    return static_size(named.indices, 1), experts, hidden, inner


def _weights(group: Group) -> tuple[WeightUse, ...]:
    named = _named(group)
    if named.gate is None:
        first = WeightUse("experts", (named.up.index,))
    else:
        first = WeightUse("experts_pair", (named.gate.index, named.up.index))
    biases = [b for b in (named.gate_bias, named.up_bias, named.down_bias) if b is not None]
    vectors = tuple(WeightUse("vector", (b.index,)) for b in biases)
    return (first, WeightUse("experts", (named.down.index,)), *vectors)


def _scratch(group: Group, options: KernelOptions) -> Scratch:
    chosen, experts, hidden, inner = _sizes(group)
    return Scratch(
        per_worker=f"experts_scratch_bytes(kStepTokens, {chosen}, {experts}, {hidden}, {inner})",
        shared=f"experts_shared_bytes(kStepTokens, {chosen}, {hidden}, {inner})",
    )


EXPERTS = KernelDef(
    name="experts",
    summary="experts that the rows chose, sorted by expert, packed weights",
    priority=10,
    matches=lambda group: len(group.ops("nn.experts")) == 1,
    supports=_supports,
    params=_params,
    template="experts.cpp.j2",
    weights=_weights,
    scratch=_scratch,
    arithmetic=lambda group, options: integer_arithmetic(
        group, tensor(_named(group).up).dtype, options
    ),
)
