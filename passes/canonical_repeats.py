"""One element of an axis along which a value only repeats itself: the value without that axis.

    %b = core.broadcast_to(%p) {shape = (3, B, S)}           %u = core.reshape(%p) : i64[1, B, S]
    %f = core.mul(%b, %w) : f32[3, B, S, 8]           =>     %y = core.mul(%u, %w) : f32[1, B, S, 8]
    %y = core.slice(%f) {axis = 0, start = 1, stop = 2}

Rotary embedding of several kinds of positions (height, width) is written for images; for text all
kinds are the same. Behind this, what was picked out of the kinds is one value again.
"""

from __future__ import annotations

from inferc.ir.core import Op, Value
from inferc.ir.ops.elementwise import ELEMENTWISE
from inferc.passes.driver import Edit, pattern
from inferc.passes.match import (
    axis_attr,
    ints_attr,
    is_unit,
    same_but_lead,
    same_shape,
    same_size,
    tensor,
)


@pattern("core.slice")
def one_of_repeated(op: Op, edit: Edit) -> Value | None:
    """Take the value from before it was repeated."""
    axis = axis_attr(op)
    if not is_unit(tensor(op.result).shape[axis]) or is_unit(tensor(op.operands[0]).shape[axis]):
        return None
    return _single(op.operands[0], axis, edit) if _repeats(op.operands[0], axis) else None


def _repeats(value: Value, axis: int) -> bool:
    """Whether all elements along the axis are the same."""
    if is_unit(tensor(value).shape[axis]):
        return True
    op = value.producer
    inner = _operands(op, axis) if op is not None else None
    return inner is not None and all(a is None or _repeats(v, a) for v, a in inner)


def _operands(op: Op, axis: int) -> list[tuple[Value, int | None]] | None:
    """Operands and which of their axes becomes this axis of the result; None: cannot be said."""
    if len(op.results) != 1:
        return None
    rank = tensor(op.result).rank
    if op.name in ELEMENTWISE or op.name == "core.broadcast_to":
        moved = [axis - (rank - tensor(v).rank) for v in op.operands]
        return [(v, a if a >= 0 else None) for v, a in zip(op.operands, moved, strict=True)]
    if op.name == "core.transpose":
        return [(op.operands[0], ints_attr(op, "perm")[axis])]
    if op.name == "core.reshape":
        kept = _kept(op, axis)
        return None if kept is None else [(op.operands[0], kept)]
    return [(op.operands[0], axis)] if op.name == "core.slice" else None


def _kept(op: Op, axis: int) -> int | None:
    """The axis of a reshape's operand that this axis of the result is, all before it kept too."""
    old, new = tensor(op.operands[0]).shape, tensor(op.result).shape
    before = [s for s in new[:axis] if not is_unit(s)]
    for at, size in enumerate(old):
        if same_size(size, new[axis]):
            if same_shape(tuple(s for s in old[:at] if not is_unit(s)), tuple(before)):
                return at
    return None


def _single(value: Value, axis: int, edit: Edit) -> Value:
    """The value with one element along the axis, which it repeats itself along."""
    shape, op = tensor(value).shape, value.producer
    if is_unit(shape[axis]):
        return value
    assert op is not None
    inner = _operands(op, axis)
    assert inner is not None
    edit.covers(op)
    operands = [v if a is None else _single(v, a, edit) for v, a in inner]
    single = (*shape[:axis], 1, *shape[axis + 1 :])
    if op.name in ("core.reshape", "core.broadcast_to"):
        added = same_but_lead(single, tensor(operands[0]).shape)
        return edit.op("core.reshape" if added else op.name, operands[0], shape=single)
    if op.name == "core.slice" and axis_attr(op) == axis:
        return operands[0]
    return edit.like(op, *operands)


REPEATS = (one_of_repeated,)
