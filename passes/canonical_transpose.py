"""Canonical place of transposes: as far down as they go, until they cancel or meet what needs them.

Models bring heads to the front for attention, `[B, S, H, D]` to `[B, H, S, D]`; our attention wants
them where they were. So transposes sink through everything that works per element or per row (the
operands broadcast against them follow when that costs nothing), and the pairs cancel.
"""

from __future__ import annotations

from inferc.ir.core import Op, Value
from inferc.ir.dims import Size
from inferc.ir.ops.elementwise import ELEMENTWISE
from inferc.passes.driver import Edit, Pattern, has_one_use, pattern
from inferc.passes.match import (
    axis_attr,
    ints_attr,
    is_unit,
    made_by,
    same_shape,
    sizes_attr,
    tensor,
)

Perm = tuple[int, ...]
_REDUCTIONS = ("core.mean", "core.sum", "core.amax")
_NORMS = ("nn.rms_norm", "nn.layer_norm")


@pattern("core.transpose")
def simplify_transpose(op: Op, edit: Edit) -> Value | None:
    """Drop an identity; make one of two in a row."""
    x, perm = op.operands[0], ints_attr(op, "perm")
    if perm == tuple(range(len(perm))):
        return x
    inner = made_by(x, "core.transpose")
    if inner is None:
        return None
    first = ints_attr(inner, "perm")
    return edit.op("core.transpose", inner.operands[0], perm=tuple(first[p] for p in perm))


@pattern("core.transpose")
def reshape_units(op: Op, edit: Edit) -> Value | None:
    """Make a reshape of a transpose that only moves unit axes (one KV head, say).

    After all others only: as long as it is a transpose it can cancel further down.
    """
    x = op.operands[0]
    if tensor(x).is_block or not _moves_units_only(x, ints_attr(op, "perm")):
        return None
    return edit.op("core.reshape", x, shape=tensor(op.result).shape)


@pattern("core.transpose")
def hoist_free_transpose(op: Op, edit: Edit) -> Value | None:
    """Turn transpose(f(a, b)) into f(a', b') where transposing every operand costs nothing."""
    inner, perm = made_by(op.operands[0], *ELEMENTWISE), ints_attr(op, "perm")
    if inner is None or not has_one_use(inner.result, edit.func):
        return None
    if _moves_units_only(inner.result, perm) or not all(_is_free(v, perm) for v in inner.operands):
        return None
    edit.covers(inner)
    operands = [_transposed(v, perm, edit) for v in inner.operands]
    return edit.like(inner, *operands)


@pattern(*ELEMENTWISE)
def sink_through_elementwise(op: Op, edit: Edit) -> Value | None:
    """Turn f(transpose(a), b) into transpose(f(a, b')) where b' costs nothing."""
    moved = next((t for v in op.operands if (t := made_by(v, "core.transpose"))), None)
    if moved is None or tensor(moved.result).rank != tensor(op.result).rank:
        return None
    perm = ints_attr(moved, "perm")
    inverse = _inverse(perm)
    if not all(_is_free(v, inverse) for v in op.operands):
        return None
    edit.covers(moved)
    operands = [_transposed(v, inverse, edit) for v in op.operands]
    made = edit.like(op, *operands)
    return edit.op("core.transpose", made, perm=perm)


@pattern(*_REDUCTIONS, "core.softmax", "core.slice", *_NORMS)
def sink_through_axis_op(op: Op, edit: Edit) -> Value | None:
    """Turn mean(transpose(a)) into transpose(mean(a)) with the axis renamed, and the like."""
    moved = made_by(op.operands[0], "core.transpose")
    if moved is None:
        return None
    perm, attrs = ints_attr(moved, "perm"), dict(op.attrs)
    if op.name in _REDUCTIONS:
        if attrs["keepdim"] is not True:
            return None
        attrs["axes"] = tuple(perm[a % len(perm)] for a in ints_attr(op, "axes"))
    elif op.name in _NORMS:
        if perm[-1] != len(perm) - 1:
            return None
    else:
        attrs["axis"] = perm[axis_attr(op)]
    edit.covers(moved)
    made = edit.like(op, moved.operands[0], *op.operands[1:], attrs=attrs)
    return edit.op("core.transpose", made, perm=perm)


@pattern("core.concat")
def sink_through_concat(op: Op, edit: Edit) -> Value | None:
    """Turn a concat of transposes that all move the axes alike into a transpose of a concat."""
    moved = [made_by(v, "core.transpose") for v in op.operands]
    first = moved[0]
    if first is None:
        return None
    perm = ints_attr(first, "perm")
    if any(m is None or ints_attr(m, "perm") != perm for m in moved):
        return None
    edit.covers(*moved)
    sources = [m.operands[0] for m in moved if m is not None]
    made = edit.op("core.concat", *sources, axis=perm[axis_attr(op)])
    return edit.op("core.transpose", made, perm=perm)


@pattern("core.reshape")
def sink_through_reshape(op: Op, edit: Edit) -> Value | None:
    """Sink a transpose through a reshape of the last axes, which the transpose leaves in place."""
    moved = made_by(op.operands[0], "core.transpose")
    if moved is None:
        return None
    perm, shape = ints_attr(moved, "perm"), sizes_attr(op, "shape")
    lead = len(perm)
    while lead and perm[lead - 1] == lead - 1:
        lead -= 1
    if not same_shape(shape[:lead], tensor(moved.result).shape[:lead]):
        return None
    edit.covers(moved)
    source = moved.operands[0]
    made = edit.op("core.reshape", source, shape=(*tensor(source).shape[:lead], *shape[lead:]))
    return edit.op("core.transpose", made, perm=(*perm[:lead], *range(lead, len(shape))))


@pattern("core.matmul")
def matmul_as_linear(op: Op, edit: Edit) -> Value | None:
    """Turn W @ x, where x has channels before tokens, into transpose(linear(transpose(x), W))."""
    w, x = op.operands
    if tensor(w).rank != 2 or tensor(x).rank < 3 or not edit.is_weight(w):
        return None
    rank = tensor(x).rank
    swap = (*range(rank - 2), rank - 1, rank - 2)
    made = edit.op("core.linear", edit.op("core.transpose", x, perm=swap), w)
    return edit.op("core.transpose", made, perm=swap)


def _inverse(perm: Perm) -> Perm:
    return tuple(perm.index(i) for i in range(len(perm)))


def _padded(value: Value, rank: int) -> tuple[Size, ...]:
    """The shape as broadcasting sees it."""
    shape = tensor(value).shape
    return (1,) * (rank - len(shape)) + shape


def _moves_units_only(value: Value, perm: Perm) -> bool:
    shape = _padded(value, len(perm))
    kept = [p for p in perm if not is_unit(shape[p])]
    return kept == sorted(kept)


def _cancels(value: Value, perm: Perm) -> bool:
    inner = made_by(value, "core.transpose")
    return inner is not None and ints_attr(inner, "perm") == _inverse(perm)


def _is_free(value: Value, perm: Perm) -> bool:
    """Whether permuting the axes of the value (as broadcasting pads them) costs nothing."""
    return _cancels(value, perm) or (not tensor(value).is_block and _moves_units_only(value, perm))


def _transposed(value: Value, perm: Perm, edit: Edit) -> Value:
    """The value with its axes permuted; `_is_free` must hold."""
    if _cancels(value, perm):
        assert value.producer is not None
        return value.producer.operands[0]
    shape = _padded(value, len(perm))
    wanted, own = tuple(shape[p] for p in perm), tensor(value).shape
    front = len(wanted) - len(own)
    if all(map(is_unit, wanted[:front])) and same_shape(wanted[front:], own):
        return value
    return edit.op("core.reshape", value, shape=wanted)


TRANSPOSE: tuple[Pattern, ...] = (
    simplify_transpose, hoist_free_transpose, sink_through_elementwise, sink_through_axis_op,
    sink_through_concat, sink_through_reshape, matmul_as_linear,
)  # fmt: skip
