"""Raises gated activations, and activations that a model spells out.

    %a = core.silu(%g)          =>    %y = nn.glu(%g, %u) {activation = "silu"}
    %y = core.mul(%a, %u)

`%g` and `%u` must come from linears. Where both are slices of one fused linear, that linear is
split into two over row slices of its weight, so that merging projections sees every gated MLP in
one form:

    %f = core.linear(%x, %w) : f32[B, S, 192]             %a = core.slice(%w) {axis = 0, 0..96}
    %g = core.slice(%f) {axis = 2, start = 0, stop = 96}  %g = core.linear(%x, %a)
    %u = core.slice(%f) {axis = 2, start = 96, ...}   =>  ...

The fused projection of q, k and v is left as slices of one linear: rotary embedding and KV append
read the merged rows in place, so a split would only be undone.

Not raised: an activation with another reader, operands of different shapes, a product of values
that are no projections (an attention output times a sigmoid gate).
"""

from __future__ import annotations

from dataclasses import dataclass

from inferc.ir.core import Module, Op, Value
from inferc.passes.base import Pass, PassContext
from inferc.passes.driver import Edit, apply_patterns, has_one_use, pattern
from inferc.passes.match import axis_attr, int_attr, made_by, size_attr, tensor
from inferc.passes.match_activation import spelled_gelu, spelled_silu

_LOOK_THROUGH = ("core.slice", "core.reshape", "core.mul", "core.minimum", "core.maximum")


@dataclass(frozen=True)
class RaiseGatedMlp(Pass):
    """Raises gated activations."""

    name = "raise-gated-mlp"
    requires = frozenset({"normalized"})

    def run(self, module: Module, context: PassContext) -> None:
        """Rewrite every function: activations first, so that a spelled-out one is found as gate."""
        for func in module:
            apply_patterns(func, context, (spelled_gelu, spelled_silu))
            apply_patterns(func, context, (glu,))
            apply_patterns(func, context, (split_fused,))


@pattern("core.mul")
def glu(op: Op, edit: Edit) -> Value | None:
    """An activation of a projection, times another projection."""
    for value, up in (op.operands, op.operands[::-1]):
        activation = _activation(value)
        if activation is None or value.producer is None:
            continue
        gate = value.producer.operands[0]
        if not _from_linear(gate) or not _from_linear(up):
            edit.refuse("gate and up are not both projections")
        elif gate.type != up.type:
            edit.refuse(f"gate {gate.type} and up {up.type} differ")
        elif not has_one_use(value, edit.func):
            edit.refuse("the activation has another reader")
        else:
            edit.covers(value.producer)
            return edit.op("nn.glu", gate, up, activation=activation)
    return None


def _activation(value: Value) -> str | None:
    op = made_by(value, "core.silu", "core.gelu", "core.relu", "core.sigmoid")
    if op is None:
        return None
    tanh = op.name == "core.gelu" and op.attrs["approximate"] == "tanh"
    return op.name.removeprefix("core.") + ("_tanh" if tanh else "")


def _from_linear(value: Value) -> bool:
    """Whether the value is a linear, seen through slices, reshapes and simple scaling."""
    op = value.producer
    while op is not None and op.name in _LOOK_THROUGH:
        op = op.operands[0].producer
    return op is not None and op.name == "core.linear"


@pattern("nn.glu")
def split_fused(op: Op, edit: Edit) -> Value | None:
    """Gate and up as slices of one linear become two linears."""
    gate, up = (_slice_of_linear(v) for v in op.operands)
    if gate is None or up is None or gate.operands[0] is not up.operands[0]:
        return None
    fused = gate.operands[0]
    readers = {id(user) for user in fused.users}
    if readers != {id(gate), id(up)} or edit.func.is_result(fused):
        edit.refuse("the fused projection has another reader than gate and up")
        return None
    return edit.like(op, _part(fused, gate, "gate_proj", edit), _part(fused, up, "up_proj", edit))


def _slice_of_linear(value: Value) -> Op | None:
    op = made_by(value, "core.slice")
    if op is None or made_by(op.operands[0], "core.linear") is None:
        return None
    return op if axis_attr(op) == tensor(value).rank - 1 else None


def _part(fused: Value, part: Op, name: str, edit: Edit) -> Value:
    """The linear over the rows of the fused weight (and bias) that a slice keeps."""
    linear = fused.producer
    assert linear is not None
    x, *weights = linear.operands
    attrs = {
        "axis": 0, "start": size_attr(part, "start"), "stop": size_attr(part, "stop"),
        "step": int_attr(part, "step"),
    }  # fmt: skip
    of = [linear, part]
    rows = [edit.add("core.slice", weight, attrs=attrs, of=of).result for weight in weights]
    return edit.add("core.linear", x, *rows, attrs={}, of=of, hint=name).result
