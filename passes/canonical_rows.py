"""Canonical form of work on rows whose token axes were folded with others: tokens keep their axes.

    %n = core.reshape(%h) : f32[4*B*S, 16]        %y = core.square(%h) : f32[B, S, 4, 16]
    %y = core.square(%n) : f32[4*B*S, 16]    =>   %n = core.reshape(%y) : f32[4*B*S, 16]

Models fold all axes but the last before a norm of heads and unfold them behind it. The fold sinks
through what works per element or along the last axis, and meets its end there.
"""

from __future__ import annotations

from inferc.ir.core import Op, Value
from inferc.ir.dims import Dim, Size
from inferc.ir.ops.elementwise import ELEMENTWISE
from inferc.passes.driver import Edit, pattern
from inferc.passes.match import ints_attr, made_by, same_size, tensor

_REDUCTIONS = ("core.mean", "core.sum", "core.amax")


@pattern(*ELEMENTWISE, *_REDUCTIONS)
def sink_fold(op: Op, edit: Edit) -> Value | None:
    """Do an op on the rows as they were before they were folded."""
    folds = [_fold(v) for v in op.operands]
    if any(f is None and tensor(v).rank > 1 for f, v in zip(folds, op.operands, strict=True)):
        return None
    found = [f for f in folds if f is not None]
    if not found or not all(same_size(tensor(f.result).shape[0], _rows(op)) for f in found):
        return None
    lead, attrs = _lead(found), dict(op.attrs)
    if op.name in ELEMENTWISE and len(op.operands) == 1:
        lead = tensor(found[0].operands[0]).shape[:-1]
        operands = [found[0].operands[0]]
    elif lead is None:
        return None
    else:
        wide = lead
        operands = [
            v if f is None else _wide(f, wide, edit)
            for f, v in zip(folds, op.operands, strict=True)
        ]
    if op.name in _REDUCTIONS:
        if attrs["keepdim"] is not True or ints_attr(op, "axes") != (1,):
            return None
        attrs["axes"] = (len(lead),)
    edit.covers(*found)
    made = edit.like(op, *operands, attrs=attrs)
    return edit.op("core.reshape", made, shape=tensor(op.result).shape)


def _rows(op: Op) -> Size:
    shape = tensor(op.result).shape
    return shape[0] if len(shape) == 2 else 0


def _fold(value: Value) -> Op | None:
    """The reshape that folded the tokens of a value `[N, V]` with other axes."""
    op = made_by(value, "core.reshape")
    if op is None or tensor(value).rank != 2 or not isinstance(tensor(value).shape[0], Dim):
        return None
    source = tensor(op.operands[0]).shape
    folded = len(source) > 2 and sum(isinstance(s, Dim) for s in source[:-1]) == 2
    return op if folded else None


def _lead(folds: list[Op]) -> tuple[Size, ...] | None:
    """The axes before the last of a source that was folded without touching its last axis."""
    for fold in folds:
        source = tensor(fold.operands[0]).shape
        if same_size(source[-1], tensor(fold.result).shape[-1]):
            return source[:-1]
    return None


def _wide(fold: Op, lead: tuple[Size, ...], edit: Edit) -> Value:
    """The source of a fold with the given axes before the last."""
    shape = (*lead, tensor(fold.result).shape[-1])
    source = fold.operands[0]
    if tensor(source).shape == shape:
        return source
    return edit.op("core.reshape", source, shape=shape)
