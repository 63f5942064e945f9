"""Small questions that patterns ask of values."""

from __future__ import annotations

import math

from inferc.ir.core import Op, Value
from inferc.ir.dims import Size, known_eq
from inferc.ir.types import TensorType


def tensor(value: Value) -> TensorType:
    """The tensor type of a value. Raises TypeError for caches."""
    if not isinstance(value.type, TensorType):
        raise TypeError(f"%{value.hint} is {value.type}, not a tensor")
    return value.type


def made_by(value: Value, *names: str) -> Op | None:
    """The producer if it is one of these ops."""
    op = value.producer
    return op if op is not None and op.name in names else None


def scalar(value: Value) -> float | None:
    """The number that a constant of one element holds; None for anything else and for booleans."""
    op = made_by(value, "core.constant")
    if op is None:
        return None
    values = op.attrs["values"]
    if not isinstance(values, tuple) or len(values) != 1:
        return None
    number = values[0]
    if isinstance(number, bool) or not isinstance(number, int | float):
        return None
    return float(number)


def is_scalar(value: Value, number: float) -> bool:
    """Whether the value is a constant of one element equal to `number`."""
    return scalar(value) == number


def is_near(found: float | None, number: float) -> bool:
    """Whether a constant was meant to be `number`: equal up to its rounding to float32."""
    return found is not None and math.isclose(found, number, rel_tol=3e-7)


def int_attr(op: Op, name: str) -> int:
    """An attribute known to be an int."""
    value = op.attrs[name]
    assert isinstance(value, int)
    return value


def ints_attr(op: Op, name: str) -> tuple[int, ...]:
    """An attribute known to be a tuple of ints."""
    value = op.attrs[name]
    assert isinstance(value, tuple)
    return tuple(int(v) for v in value)  # type: ignore[arg-type]


def axis_attr(op: Op, name: str = "axis") -> int:
    """An axis attribute of an op whose first operand has that axis, counted from the front."""
    return int_attr(op, name) % max(tensor(op.operands[0]).rank, 1)


def size_attr(op: Op, name: str) -> Size:
    """An attribute known to be a size."""
    return op.attrs[name]  # type: ignore[return-value]


def sizes_attr(op: Op, name: str) -> tuple[Size, ...]:
    """An attribute known to be a tuple of sizes."""
    return op.attrs[name]  # type: ignore[return-value]


def same_size(a: Size, b: Size) -> bool:
    """Whether two sizes are known to be equal."""
    return known_eq(a, b) is True


def same_shape(a: tuple[Size, ...], b: tuple[Size, ...]) -> bool:
    """Whether two shapes are known to be equal."""
    return len(a) == len(b) and all(map(same_size, a, b))


def same_but_lead(shape: tuple[Size, ...], wanted: tuple[Size, ...]) -> bool:
    """Whether a shape is the wanted one, with nothing but unit axes in front of it."""
    more = len(shape) - len(wanted)
    return more >= 0 and all(map(is_unit, shape[:more])) and same_shape(shape[more:], wanted)


def same_value(a: Value, b: Value, depth: int = 12) -> bool:
    """Whether two values are computed alike from the same ones, a few ops up."""
    first, second = a.producer, b.producer
    if a is b:
        return True
    if first is None or second is None or depth == 0 or len(first.results) != 1:
        return False
    if first.name != second.name or first.attrs != second.attrs or first.card.stateful:
        return False
    pairs = zip(first.operands, second.operands, strict=False)
    return len(first.operands) == len(second.operands) and all(
        same_value(x, y, depth - 1) for x, y in pairs
    )


def is_unit(size: Size) -> bool:
    """Whether an axis has exactly one element."""
    return same_size(size, 1)


def attention_mask(op: Op) -> Value | None:
    """The mask [B, 1, S, S] of an nn.attention."""
    return next((v for v in op.operands[3:] if tensor(v).rank == 4), None)


def attention_sinks(op: Op) -> Value | None:
    """The sinks [H] of an nn.attention."""
    return next((v for v in op.operands[3:] if tensor(v).rank == 1), None)


def mean_of_last(value: Value) -> Value | None:
    """The x of a mean over the last axis that keeps the axis."""
    op = made_by(value, "core.mean")
    if op is None or op.attrs["keepdim"] is not True:
        return None
    x = op.operands[0]
    rank = tensor(x).rank
    return x if [a % rank for a in ints_attr(op, "axes")] == [rank - 1] else None
