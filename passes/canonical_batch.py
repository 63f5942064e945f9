"""Canonical forms of products whose batch was folded into one axis: heads keep their own axis.

    %q3 = core.reshape(%q) : f32[4*B, S, 16]            %s = core.matmul(%q, %k) : f32[B, 4, S, S]
    %k3 = core.reshape(%k) : f32[4*B, 16, S]     =>     %s3 = core.reshape(%s) : f32[4*B, S, S]
    %s3 = core.matmul(%q3, %k3)

What is done to the product before it is unfolded again is done to the unfolded one.
"""

from __future__ import annotations

from inferc.ir.core import Op, Value
from inferc.ir.dims import Size
from inferc.ir.ops.elementwise import BINARY
from inferc.passes.driver import Edit, pattern
from inferc.passes.match import (
    axis_attr,
    ints_attr,
    is_unit,
    made_by,
    same_shape,
    same_size,
    tensor,
)


@pattern("core.matmul")
def unfold_product(op: Op, edit: Edit) -> Value | None:
    """Multiply the operands as they were before their first two axes were folded."""
    a, b = (_unfolded(v) for v in op.operands)
    if tensor(op.result).rank != 3 or a is None or b is None:
        return None
    if not same_shape(tensor(a[0]).shape[:2], tensor(b[0]).shape[:2]):
        return None
    product = edit.op("core.matmul", _moved(a, edit), _moved(b, edit))
    return edit.op("core.reshape", product, shape=tensor(op.result).shape)


def _unfolded(value: Value) -> tuple[Value, bool] | None:
    """The [A, B, m, n] that a value [A*B, m, n] is a fold of, or [A, B, n, m] and true."""
    moved = made_by(value, "core.transpose")
    turned = moved is not None and ints_attr(moved, "perm") == (0, 2, 1)
    folded = moved.operands[0] if moved is not None and turned else value
    fold = made_by(folded, "core.reshape")
    if fold is None or not _folds(tensor(fold.operands[0]).shape, tensor(folded).shape):
        return None
    return fold.operands[0], turned


def _moved(found: tuple[Value, bool], edit: Edit) -> Value:
    value, turned = found
    return edit.op("core.transpose", value, perm=(0, 1, 3, 2)) if turned else value


def _folds(wide: tuple[Size, ...], narrow: tuple[Size, ...]) -> bool:
    return len(wide) == 4 and len(narrow) == 3 and same_shape(wide[2:], narrow[1:])


@pattern("core.softmax")
def unfold_softmax(op: Op, edit: Edit) -> Value | None:
    """Softmax over the last axis before a fold of the others."""
    fold = made_by(op.operands[0], "core.reshape")
    if fold is None or axis_attr(op) != tensor(op.result).rank - 1:
        return None
    wide = tensor(fold.operands[0]).shape
    if not _folds(wide, tensor(op.result).shape):
        return None
    made = edit.op("core.softmax", fold.operands[0], axis=3)
    return edit.op("core.reshape", made, shape=tensor(op.result).shape)


@pattern("core.reshape")
def unfold_binary(op: Op, edit: Edit) -> Value | None:
    """An unfold behind an element-wise op of a fold: the op acts on what was folded."""
    binary = op.operands[0].producer
    if binary is None or binary.name not in BINARY:
        return None
    shape = tensor(op.result).shape
    if not _folds(shape, tensor(binary.result).shape):
        return None
    for i, value in enumerate(binary.operands):
        fold = made_by(value, "core.reshape")
        if fold is None or not same_shape(tensor(fold.operands[0]).shape, shape):
            continue
        other = _spread(binary.operands[1 - i], shape, edit)
        if other is not None:
            pair = (fold.operands[0], other) if i == 0 else (other, fold.operands[0])
            edit.covers(binary)
            return edit.op(binary.name, *pair)
    return None


@pattern(*sorted(BINARY))
def fold_late(op: Op, edit: Edit) -> Value | None:
    """A number combined with a fold: combined with what was folded, which is folded then."""
    for i, value in enumerate(op.operands):
        fold, other = made_by(value, "core.reshape"), op.operands[1 - i]
        if fold is None or tensor(other).shape or other.producer is None:
            continue
        wide = fold.operands[0]
        product_below = made_by(wide, "core.matmul")
        if product_below is None or not _folds(tensor(wide).shape, tensor(value).shape):
            continue
        pair = (wide, other) if i == 0 else (other, wide)
        made = edit.op(op.name, *pair)
        return edit.op("core.reshape", made, shape=tensor(op.result).shape)
    return None


def _spread(value: Value, shape: tuple[Size, ...], edit: Edit) -> Value | None:
    """An operand [A*B, 1 or m, 1 or n] of a folded op as [A, B, ..]; a scalar as it is."""
    own = tensor(value).shape
    if not own:
        return value
    fits = len(own) == 3 and same_size(own[0], shape[0] * shape[1])
    if not fits or not all(
        is_unit(a) or same_size(a, b) for a, b in zip(own[1:], shape[2:], strict=True)
    ):
        return None
    return edit.op("core.reshape", value, shape=(*shape[:2], *own[1:]))


BATCH = (unfold_product, unfold_softmax, unfold_binary, fold_late)
