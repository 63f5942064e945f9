"""Raises RMS norm and layer norm from the ops they are written in.

    %s = core.square(%x)
    %m = core.mean(%s) {axes = (2,)}
    %e = core.add(%m, %eps)                 =>    %y = nn.rms_norm(%x, %w) {eps = 1e-06}
    %r = core.rsqrt(%e)
    %n = core.mul(%x, %r)
    %y = core.mul(%n, %w)

Two steps: the normalisation itself, then its weight. So a norm without weight is raised, one whose
weight is an expression such as 1 + w keeps that expression, and one that is gated afterwards stays
a norm times a gate. A norm of centred rows is a layer norm.

Not raised: a mean over other axes, a weight that is not one vector over the last axis, a root mean
square that something else reads as well (it would be computed twice).
"""

from __future__ import annotations

from dataclasses import dataclass

from inferc.ir.core import Module, Op, Value
from inferc.passes.base import Pass, PassContext
from inferc.passes.driver import Edit, apply_patterns, has_one_use, pattern
from inferc.passes.match import made_by, mean_of_last, same_shape, scalar, tensor

_NORMS = ("nn.rms_norm", "nn.layer_norm")


@dataclass(frozen=True)
class RaiseNorm(Pass):
    """Raises RMS norm and layer norm."""

    name = "raise-norm"
    requires = frozenset({"normalized"})

    def run(self, module: Module, context: PassContext) -> None:
        """Rewrite every function."""
        for func in module:
            apply_patterns(func, context, (rms_norm, layer_norm, norm_weight, norm_bias))


@pattern("core.mul", "core.div")
def rms_norm(op: Op, edit: Edit) -> Value | None:
    """Raise x * rsqrt(mean(x^2) + eps), also as x / sqrt(mean(x^2) + eps)."""
    for x, root in _factors(op):
        eps = _root_mean_square(x, root, edit)
        if eps is None:
            continue
        if not has_one_use(root, edit.func):
            edit.refuse("the root mean square has another reader")
        elif x.type == op.result.type:
            return edit.op("nn.rms_norm", x, eps=eps, hint=module_hint(op))
    return None


def _factors(op: Op) -> list[tuple[Value, Value]]:
    """Pairs (x, value of the root) that the op may be a normalisation by."""
    a, b = op.operands
    if op.name == "core.div":
        return [(a, b)] if made_by(b, "core.sqrt") else []
    return [(x, r) for x, r in ((a, b), (b, a)) if made_by(r, "core.rsqrt")]


def _root_mean_square(x: Value, root: Value, edit: Edit) -> float | None:
    """The eps of sqrt(mean(x^2) + eps) or its inverse."""
    biased = made_by(root.producer.operands[0], "core.add") if root.producer else None
    if biased is None or root.producer is None:
        return None
    mean, eps = biased.operands[0], scalar(biased.operands[1])
    reduced = made_by(mean, "core.mean")
    squared = made_by(reduced.operands[0], "core.square") if reduced is not None else None
    if eps is None or squared is None or squared.operands[0] is not x:
        return None
    if mean_of_last(mean) is None:
        edit.refuse("the mean is not over the last axis alone, or drops it")
        return None
    edit.covers(squared, reduced, biased, root.producer)
    return eps


@pattern("nn.rms_norm")
def layer_norm(op: Op, edit: Edit) -> Value | None:
    """Raise the RMS norm of x - mean(x)."""
    centred = made_by(op.operands[0], "core.sub")
    if centred is None or mean_of_last(centred.operands[1]) is not centred.operands[0]:
        return None
    edit.covers(centred.operands[1].producer, centred)
    x = centred.operands[0]
    return edit.op("nn.layer_norm", x, *op.operands[1:], eps=op.attrs["eps"], hint=op.result.hint)


@pattern("core.mul")
def norm_weight(op: Op, edit: Edit) -> Value | None:
    """Absorb the weight: a norm without weight, times a vector over the last axis."""
    for value, weight in (op.operands, op.operands[::-1]):
        norm = made_by(value, *_NORMS)
        if norm is None or len(norm.operands) != 1 or not edit.is_weight(weight):
            continue
        if not _is_last_axis(weight, value):
            edit.refuse(f"the weight {weight.type} is not one vector over the last axis")
        elif not has_one_use(value, edit.func):
            edit.refuse("the norm without its weight has another reader")
        else:
            edit.covers(norm)
            return _with(norm, weight, op, edit)
    return None


@pattern("core.add")
def norm_bias(op: Op, edit: Edit) -> Value | None:
    """Absorb the bias: a layer norm without bias, plus a vector over the last axis."""
    value, bias = op.operands
    norm = made_by(value, "nn.layer_norm")
    if norm is None or len(norm.operands) != 2 or not has_one_use(value, edit.func):
        return None
    if not edit.is_weight(bias) or not _is_last_axis(bias, value):
        return None
    edit.covers(norm)
    return _with(norm, bias, op, edit)


def _with(norm: Op, vector: Value, op: Op, edit: Edit) -> Value:
    eps = norm.attrs["eps"]
    return edit.op(norm.name, *norm.operands, vector, eps=eps, hint=module_hint(op))


def _is_last_axis(vector: Value, value: Value) -> bool:
    return same_shape(tensor(vector).shape, tensor(value).shape[-1:])


def module_hint(op: Op) -> str:
    """A name for the result: the last part of the path of the module it comes from."""
    roots = op.loc.roots()
    leaf = roots[-1].path.rpartition(".")[2] if roots else ""
    return leaf if leaf.isidentifier() else ""
