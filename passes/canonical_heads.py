"""Products with a matrix for each head, and small products of a token's own values.

    %y = core.matmul(%x, %w) : f32[2, T, 8]        %y0 = core.linear(%x0, %w0) : f32[1, T, 8]
                                             =>    %y1 = core.linear(%x1, %w1) : f32[1, T, 8]
                                                   %y = core.concat(%y0, %y1) {axis = 0}

Gates of recurrent layers are block-diagonal: each head has a small matrix of its own. As linear
layers of the heads they are what the kernels know. What is neither (a matrix that the token itself
computed, 4 x 4, say) is multiplied out.
"""

from __future__ import annotations

from inferc.ir.core import Op, Value
from inferc.passes.driver import Edit, pattern
from inferc.passes.match import is_unit, same_shape, tensor

_HEADS_MAX = 256
_SMALL_MAX = 8  # terms of a sum that is multiplied out


@pattern("core.matmul")
def product_by_head(op: Op, edit: Edit) -> Value | None:
    """A linear layer for each head, joined."""
    a, b = op.operands
    rank = tensor(op.result).rank
    weighted = [edit.is_weight(v) for v in (a, b)]
    if weighted == [False, True]:
        axis = _head_axis(b, a, rank)
        return None if axis is None else _joined(a, b, axis, edit)
    if weighted == [True, False]:
        axis = _head_axis(a, b, rank)
        if axis is None:
            return None
        made = _joined(_turned(b, edit), _turned(a, edit), axis, edit)
        return _turned(made, edit)
    return None


def _head_axis(weight: Value, x: Value, rank: int) -> int | None:
    """The one batch axis that a weight has, counted in the result; x has it too."""
    shape, own = tensor(x).shape, tensor(weight).shape
    axes = [i for i, size in enumerate(own[:-2]) if not is_unit(size)]
    if len(axes) != 1 or len(shape) != rank or tensor(weight).is_block:
        return None
    axis = axes[0] + rank - len(own)
    heads = own[axes[0]]
    fits = isinstance(heads, int) and heads <= _HEADS_MAX and shape[axis] == heads
    return axis if fits else None


def _joined(x: Value, weight: Value, axis: int, edit: Edit) -> Value:
    """X [.., H, .., M, K] times weight [H, .., K, N] of each head."""
    (*_, k, n), heads = tensor(weight).shape, tensor(x).shape[axis]
    own_axis = axis - (tensor(x).rank - tensor(weight).rank)
    assert isinstance(heads, int)
    parts = []
    for head in range(heads):
        rows = edit.op("core.slice", x, axis=axis, start=head, stop=head + 1)
        part = edit.op("core.slice", weight, axis=own_axis, start=head, stop=head + 1)
        matrix = edit.op("core.reshape", part, shape=(k, n))
        turned = edit.op("core.transpose", matrix, perm=(1, 0))
        parts.append(edit.op("core.linear", rows, turned))
    return edit.op("core.concat", *parts, axis=axis)


def _turned(value: Value, edit: Edit) -> Value:
    rank = tensor(value).rank
    return edit.op("core.transpose", value, perm=(*range(rank - 2), rank - 1, rank - 2))


@pattern("core.matmul")
def small_product(op: Op, edit: Edit) -> Value | None:
    """A product of two matrices that every token has of its own, as a sum of products."""
    a, b = (tensor(v) for v in op.operands)
    sizes = (*a.shape[-2:], *b.shape[-2:])
    if not all(isinstance(s, int) for s in sizes) or a.rank != b.rank or a.rank < 3:
        return None
    symbolic = any(not isinstance(s, int) for s in a.shape[:-2])
    if not symbolic or not same_shape(a.shape[:-2], b.shape[:-2]) or int(sizes[1]) > _SMALL_MAX:  # type: ignore[arg-type]
        return None
    left = edit.op("core.reshape", op.operands[0], shape=(*a.shape, 1))
    right = edit.op("core.reshape", op.operands[1], shape=(*b.shape[:-2], 1, *b.shape[-2:]))
    products = edit.op("core.mul", left, right)
    return edit.op("core.sum", products, axes=(a.rank - 1,), keepdim=False)


HEADS = (product_by_head, small_product)
