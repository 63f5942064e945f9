"""Canonical forms of reshape, slice, concat and broadcast_to: as few of them as possible."""

from __future__ import annotations

from inferc.ir.card import TypeMismatch
from inferc.ir.core import Op, Value
from inferc.ir.dims import Size, known_le, product
from inferc.ir.ops.elementwise import BINARY, COMPARE
from inferc.ir.types import TensorType
from inferc.passes.canonical_rows import sink_fold
from inferc.passes.driver import Edit, Pattern, pattern
from inferc.passes.match import (
    axis_attr,
    int_attr,
    is_unit,
    made_by,
    same_shape,
    same_size,
    same_value,
    size_attr,
    tensor,
)


@pattern("core.reshape")
def simplify_reshape(op: Op, edit: Edit) -> Value | None:
    """Drop a reshape to the shape the value has; make one of two in a row."""
    x = op.operands[0]
    if x.type == op.result.type:
        return x
    inner = made_by(x, "core.reshape")
    return edit.like(op, inner.operands[0]) if inner is not None else None


@pattern("core.linear")
def keep_leading_axes(op: Op, edit: Edit) -> Value | None:
    """Turn linear of rows that a reshape collapsed into linear of the rows as they were."""
    inner = made_by(op.operands[0], "core.reshape")
    if inner is None:
        return None
    x, rows = inner.operands[0], tensor(inner.result)
    shape = tensor(x).shape
    for lead in range(rows.rank, len(shape)):  # more leading axes than the collapsed rows have
        if same_size(product(shape[lead:]), rows.shape[-1]):
            edit.covers(inner)
            restored = edit.op("core.reshape", x, shape=(*shape[:lead], rows.shape[-1]))
            made = edit.op("core.linear", restored, *op.operands[1:])
            return edit.op("core.reshape", made, shape=tensor(op.result).shape)
    return None


@pattern("nn.rms_norm", "nn.layer_norm")
def keep_token_axis(op: Op, edit: Edit) -> Value | None:
    """Turn a norm of rows that a reshape collapsed, [B, 4*S, 32], into one of [B, S, 4, 32]."""
    inner = made_by(op.operands[0], "core.reshape")
    if inner is None:
        return None
    shape = tensor(inner.result).shape
    finer = tuple(part for size in shape for part in _factors(size))
    if len(finer) == len(shape) or not same_size(finer[-1], shape[-1]):
        return None
    edit.covers(inner)
    restored = edit.op("core.reshape", inner.operands[0], shape=finer)
    made = edit.like(op, restored, *op.operands[1:])
    return edit.op("core.reshape", made, shape=shape)


def _factors(size: Size) -> tuple[Size, ...]:
    """A size that is a number times symbols as the two; others as they are."""
    if isinstance(size, int) or len(size.terms) != 1:
        return (size,)
    factor = size.terms[0][1]
    return (size,) if factor <= 1 else (size // factor, factor)


@pattern("core.broadcast_to")
def drop_broadcast(op: Op, edit: Edit) -> Value | None:
    """Drop a broadcast to the shape the value has."""
    x = op.operands[0]
    return x if x.type == op.result.type else None


@pattern(*BINARY, *COMPARE, "core.where")
def broadcast_implicitly(op: Op, edit: Edit) -> Value | None:
    """Let an element-wise op read what was broadcast, where that gives the same shape."""
    operands = list(op.operands)
    for i, value in enumerate(op.operands):
        source = _before_broadcast(value)
        if source is None:
            continue
        tried = [*operands[:i], source, *operands[i + 1 :]]
        if _result_type(op, tried) == op.result.type:
            operands = tried
    if operands == list(op.operands):
        return None
    return edit.like(op, *operands)


def _before_broadcast(value: Value) -> Value | None:
    """The source of a broadcast_to, or of a reshape that only puts unit axes in front."""
    op = made_by(value, "core.broadcast_to", "core.reshape")
    if op is None or op.name == "core.broadcast_to":
        return op.operands[0] if op is not None else None
    source, shape = tensor(op.operands[0]).shape, tensor(value).shape
    added = len(shape) - len(source)
    only_front = added > 0 and all(map(is_unit, shape[:added]))
    return op.operands[0] if only_front and same_shape(shape[added:], source) else None


def _result_type(op: Op, operands: list[Value]) -> TensorType | None:
    try:
        return op.card.infer([v.type for v in operands], op.attrs)[0]  # type: ignore[return-value]
    except TypeMismatch:
        return None


@pattern("core.slice")
def simplify_slice(op: Op, edit: Edit) -> Value | None:
    """Drop a slice of everything; make one of two in a row; look through concat."""
    x, axis, step = op.operands[0], axis_attr(op), int_attr(op, "step")
    if x.type == op.result.type:
        return x
    start, stop = size_attr(op, "start"), size_attr(op, "stop")
    if step != 1 and is_unit(tensor(op.result).shape[axis]):  # one element: nothing to step over
        return edit.op("core.slice", x, axis=axis, start=start, stop=start + 1)
    inner = made_by(x, "core.slice", "core.concat")
    if inner is None or axis_attr(inner) != axis:
        return None
    if inner.name == "core.concat":
        return _slice_of_concat(inner, edit, axis, start, stop, step)
    offset = size_attr(inner, "start")
    if int_attr(inner, "step") != 1:
        if not is_unit(stop - start) or not isinstance(start, int):
            return None
        start = start * int_attr(inner, "step")
        stop = start + 1
    return edit.op(
        "core.slice", inner.operands[0], axis=axis, start=start + offset, stop=stop + offset,
        step=step,
    )  # fmt: skip


def _slice_of_concat(
    concat: Op, edit: Edit, axis: int, start: Size, stop: Size, step: int
) -> Value | None:
    """The slice of the one operand that has all of start..stop."""
    offset: Size = 0
    for part in concat.operands:
        end = offset + tensor(part).shape[axis]
        if known_le(offset, start) is True and known_le(stop, end) is True:
            edit.covers(concat)
            return edit.op(
                "core.slice", part, axis=axis, start=start - offset, stop=stop - offset, step=step
            )
        offset = end
    return None


@pattern("core.concat")
def simplify_concat(op: Op, edit: Edit) -> Value | None:
    """Drop empty operands, join neighbouring slices of one value, drop a concat of one operand."""
    axis = axis_attr(op)
    parts = [v for v in op.operands if not same_size(tensor(v).shape[axis], 0)] or [op.operands[0]]
    joined = [parts[0]]
    for part in parts[1:]:
        both = _joined(joined[-1], part, axis, edit)
        joined[-1:] = [both] if both is not None else [joined[-1], part]
    if len(joined) == len(op.operands):
        return joined[0] if len(joined) == 1 else None
    return joined[0] if len(joined) == 1 else edit.op("core.concat", *joined, axis=axis)


def _joined(left: Value, right: Value, axis: int, edit: Edit) -> Value | None:
    """One slice of x for `x[a:b]` followed by `x[b:c]`."""
    a, b = made_by(left, "core.slice"), made_by(right, "core.slice")
    if a is None or b is None or not same_value(a.operands[0], b.operands[0]):
        return None
    if axis_attr(a) != axis or axis_attr(b) != axis or int_attr(a, "step") != 1:
        return None
    if int_attr(b, "step") != 1 or not same_size(size_attr(a, "stop"), size_attr(b, "start")):
        return None
    return edit.op(
        "core.slice", a.operands[0], axis=axis, start=size_attr(a, "start"),
        stop=size_attr(b, "stop"),
    )  # fmt: skip


SHAPE: tuple[Pattern, ...] = (
    simplify_reshape, drop_broadcast, broadcast_implicitly, simplify_slice, simplify_concat,
    keep_leading_axes, keep_token_axis, sink_fold,
)  # fmt: skip
