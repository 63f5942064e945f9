"""Recognises the pieces of rotary embedding: parts of a head, joins of parts, tables."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from inferc.ir.core import Op, Value
from inferc.ir.dims import Size
from inferc.passes.match import (
    axis_attr,
    int_attr,
    is_unit,
    made_by,
    same_but_lead,
    same_shape,
    scalar,
    size_attr,
    tensor,
)

Pairing = Literal["half", "interleaved"]
Layout = Literal["narrow", "half", "interleaved"]


@dataclass(frozen=True)
class Region:
    """Elements start, start + step … of the last axis of `base`, `count` of them."""

    base: Value
    start: int
    count: int
    step: int = 1


def region(value: Value) -> Region | None:
    """The value as part of what it was sliced from; None if its last axis is not constant."""
    count = last_size(value)
    if count is None:
        return None
    op = made_by(value, "core.slice")
    if op is None:
        return _column(value, count) or Region(value, 0, count)
    if axis_attr(op) != tensor(value).rank - 1:
        return Region(value, 0, count)
    start, step = size_attr(op, "start"), int_attr(op, "step")
    return Region(op.operands[0], start, count, step) if isinstance(start, int) else None


def _column(value: Value, count: int) -> Region | None:
    """One of the two columns of a last axis that was unfolded to pairs: every other element."""
    flat = made_by(value, "core.reshape")
    part = made_by(flat.operands[0], "core.slice") if flat is not None else None
    pairs = made_by(part.operands[0], "core.reshape") if part is not None else None
    if part is None or pairs is None or axis_attr(part) != tensor(part.result).rank - 1:
        return None
    shape, base = tensor(pairs.result).shape, pairs.operands[0]
    start, kept = size_attr(part, "start"), tensor(value).shape[:-1]
    unfolded = shape[-2:] == (count, 2) and last_size(base) == 2 * count
    same_lead = same_but_units(shape[:-2], tensor(base).shape[:-1]) and same_but_units(
        kept, tensor(base).shape[:-1]
    )
    if not unfolded or not same_lead or tensor(part.result).shape[-1] != 1:
        return None
    return Region(base, start, count, 2) if isinstance(start, int) else None


def joined_region(first: Region | None, second: Region | None, pairing: Pairing) -> Region | None:
    """The region whose two halves (or even and odd elements) are these, in this order."""
    if first is None or second is None or first.base is not second.base:
        return None
    distance, step = (first.count, 1) if pairing == "half" else (1, 2)
    fits = first.step == second.step == step and second.start == first.start + distance
    if not fits or first.count != second.count:
        return None
    return Region(first.base, first.start, 2 * first.count)


def last_size(value: Value) -> int | None:
    """The size of the last axis, if it is constant."""
    shape = tensor(value).shape
    return shape[-1] if shape and isinstance(shape[-1], int) else None


def join(value: Value) -> tuple[Value, Value, Pairing] | None:
    """What a value was joined from: one half after the other, or element by element."""
    op = made_by(value, "core.concat", "core.reshape")
    if op is None:
        return None
    if op.name == "core.concat":
        is_pair = len(op.operands) == 2 and axis_attr(op) == tensor(value).rank - 1
        return (*op.operands, "half") if is_pair else None  # type: ignore[return-value]
    stacked = made_by(op.operands[0], "core.concat")
    if stacked is None or not _merges_last_two(op):
        return None
    columns = [_without_last_unit(v) for v in stacked.operands]
    if len(columns) != 2 or axis_attr(stacked) != tensor(stacked.result).rank - 1:
        return None
    first, second = columns
    return (first, second, "interleaved") if first is not None and second is not None else None


def _merges_last_two(op: Op) -> bool:
    """Whether a reshape turns [.., n, 2] into [.., 2n], give or take unit axes before."""
    source, target = tensor(op.operands[0]).shape, tensor(op.result).shape
    if len(source) < 2 or source[-1] != 2 or target[-1:] != (source[-2] * 2,):
        return False
    return same_but_units(source[:-2], target[:-1])


def _without_last_unit(value: Value) -> Value | None:
    """The v of a reshape of v, [.., n], to [.., n, 1]."""
    op, shape = made_by(value, "core.reshape"), tensor(value).shape
    if op is None or not is_unit(shape[-1]):
        return None
    source = op.operands[0]
    rest = tensor(source).shape
    same_last = rest[-1:] == shape[-2:-1]
    return source if same_last and same_but_units(rest[:-1], shape[:-2]) else None


def same_but_units(a: tuple[Size, ...], b: tuple[Size, ...]) -> bool:
    """Whether two shapes are known to be equal apart from axes of one element."""
    return same_shape(tuple(s for s in a if not is_unit(s)), tuple(s for s in b if not is_unit(s)))


@dataclass(frozen=True)
class Table:
    """cos or sin of an angle [.., R/2], times a factor, laid out along the last axis.

    `function` is None as long as the value is still an angle.
    """

    angle: Value
    function: str | None = None
    factor: float = 1.0
    layout: Layout = "narrow"


def table(value: Value) -> Table:
    """Read a value as a table; a table without function if it is none."""
    op = value.producer
    if op is None:
        return Table(value)
    if op.name in ("core.cos", "core.sin"):
        inner = table(op.operands[0])
        name = op.name.removeprefix("core.")
        return replace(inner, function=name) if inner.function is None else Table(value)
    scaled = _scaled(op)
    return scaled or _doubled(value) or _narrowed(op) or _moved(op) or Table(value)


def _scaled(op: Op) -> Table | None:
    factor = scalar(op.operands[1]) if op.name in ("core.mul", "core.div") else None
    if op.name == "core.neg":
        factor = -1.0
    if factor is None or factor == 0.0:
        return None
    inner = table(op.operands[0])
    factor = 1 / factor if op.name == "core.div" else factor
    return replace(inner, factor=inner.factor * factor) if inner.function is not None else None


def _doubled(value: Value) -> Table | None:
    """A narrow table put twice: joined with itself, or every element repeated by a broadcast."""
    parts = join(value)
    if parts is not None and parts[0] is parts[1]:
        inner, layout = table(parts[0]), parts[2]
    else:
        op = made_by(value, "core.reshape")
        repeated = made_by(op.operands[0], "core.broadcast_to") if op is not None else None
        if op is None or repeated is None or not _merges_last_two(op):
            return None
        column = _without_last_unit(repeated.operands[0])
        if column is None:
            return None
        inner, layout = table(column), "interleaved"
    return replace(inner, layout=layout) if inner.layout == "narrow" else None


def _narrowed(op: Op) -> Table | None:
    """One copy out of a doubled table."""
    if op.name != "core.slice":
        return None
    part, inner = region(op.result), table(op.operands[0])
    width = last_size(inner.angle)
    if part is None or part.base is not op.operands[0] or part.count != width:
        return None
    whole_copy = (
        part.step == 1 and part.start in (0, width)
        if inner.layout == "half"
        else part.step == 2 and part.start in (0, 1) and inner.layout == "interleaved"
    )
    return replace(inner, layout="narrow") if whole_copy else None


def _moved(op: Op) -> Table | None:
    """A reshape that only adds or drops unit axes, the last axis staying last."""
    if op.name != "core.reshape":
        return None
    source, target = tensor(op.operands[0]).shape, tensor(op.result).shape
    if source[-1:] != target[-1:] or not same_but_units(source, target):
        return None
    inner = table(op.operands[0])
    return inner if inner.function is not None else None


def frequencies(angle: Value) -> tuple[Value, Value] | None:
    """Positions [..] and inverse frequencies [R/2] whose outer product the angle is."""
    op = made_by(angle, "core.mul")
    if op is None:
        return None
    for left, right in (op.operands, op.operands[::-1]):
        positions, inverse = _positions(left), _vector(right)
        if positions is not None and inverse is not None:
            lead = tensor(positions).shape
            if same_but_lead(tensor(angle).shape, (*lead, *tensor(inverse).shape)):
                return positions, inverse
    return None


def _positions(column: Value) -> Value | None:
    """The integers [..] that a float column [.., 1] was made from."""
    value = column
    while (op := made_by(value, "core.cast", "core.reshape")) is not None:
        value = op.operands[0]
    type_ = tensor(value)
    is_column = same_but_lead(tensor(column).shape, (*type_.shape, 1))
    return value if is_column and type_.dtype in ("i32", "i64") else None


def _vector(value: Value) -> Value | None:
    """The vector that a value is, seen through unit axes in front."""
    op = made_by(value, "core.reshape")
    if op is not None and same_but_units(tensor(op.operands[0]).shape, tensor(value).shape):
        value = op.operands[0]
    return value if tensor(value).rank == 1 and tensor(value).dtype == "f32" else None
