"""The table from ATen ops to IR builders, and the emitter the builders write with.

One file a family fills the table (`aten_elementwise`, `aten_shape`, `aten_contract`, `aten_hooks`).
A builder gets the emitter and the node's arguments with nodes replaced by values, and returns the
value that stands for the node. No torch here: everything works on plain names and sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from inferc.errors import CompileError
from inferc.ir.card import AttrValue
from inferc.ir.core import Builder, Value
from inferc.ir.dims import Size
from inferc.ir.location import Location, ModuleLoc
from inferc.ir.types import TensorType

AtenBuilder = Callable[..., Any]
ATEN: dict[str, AtenBuilder] = {}

Scalar = bool | int | float


def aten(*names: str) -> Callable[[AtenBuilder], AtenBuilder]:
    """Declare the builder of one or more ATen ops, e.g. `aten.mul.Tensor`."""

    def declare(builder: AtenBuilder) -> AtenBuilder:
        for name in names:
            if name in ATEN:
                raise ValueError(f"{name} has two builders")
            ATEN[name] = builder
        return builder

    return declare


class Emitter:
    """Appends IR ops for one graph node after the other."""

    def __init__(self, builder: Builder, positions: Value) -> None:
        self.builder = builder
        self.positions = positions
        self.loc: Location = ModuleLoc(".")
        self.out: TensorType | None = None  # type that torch found for the node; None for tuples
        self.out_shapes: tuple[tuple[Size, ...], ...] = ()  # of each item, where it is a tuple
        self.hint: str | None = None
        self._scalars: dict[tuple[Scalar, str], Value] = {}

    @property
    def result(self) -> TensorType:
        """Type of the node's result, where it is one tensor."""
        assert self.out is not None
        return self.out

    def op(self, op_name: str, *operands: Value, **attrs: AttrValue) -> Value:
        """Append an op at the current location."""
        return self.builder.op(op_name, *operands, loc=self.loc, hint=self.hint, **attrs)

    def ops(self, op_name: str, *operands: Value, **attrs: AttrValue) -> tuple[Value, ...]:
        """Append an op with several results at the current location."""
        return self.builder.ops(op_name, *operands, loc=self.loc, **attrs).results

    def constant(self, values: tuple[AttrValue, ...], shape: tuple[int, ...], dtype: str) -> Value:
        """A constant tensor, values in row-major order."""
        return self.op("core.constant", values=values, shape=shape, dtype=dtype)

    def scalar(self, value: Scalar, dtype: str) -> Value:
        """A rank-0 constant, one a function and value."""
        if dtype.startswith(("f", "bf")):
            value = float(value)
        elif isinstance(value, float):
            value = int(value)
        key = (value, dtype)
        if key not in self._scalars:
            self._scalars[key] = self.constant((value,), (), dtype)
        return self._scalars[key]

    def value(self, item: Value | Scalar, dtype: str) -> Value:
        """The argument as a value of `dtype`: a constant, or the value itself, cast if need be."""
        return self.cast(item, dtype) if isinstance(item, Value) else self.scalar(item, dtype)

    def cast(self, value: Value, dtype: str) -> Value:
        """Cast, or the value itself where the dtype fits already."""
        return value if tensor(value).dtype == dtype else self.op("core.cast", value, dtype=dtype)

    def reshape(self, value: Value, shape: tuple[Size, ...]) -> Value:
        """Reshape, or the value itself."""
        if tensor(value).shape == shape:
            return value
        return self.op("core.reshape", value, shape=shape)

    def broadcast(self, value: Value, shape: tuple[Size, ...]) -> Value:
        """Broadcast to a shape, or the value itself."""
        if tensor(value).shape == shape:
            return value
        return self.op("core.broadcast_to", value, shape=shape)

    def transpose(self, value: Value, perm: tuple[int, ...]) -> Value:
        """Permute axes, or the value itself."""
        if perm == tuple(range(len(perm))):
            return value
        return self.op("core.transpose", value, perm=perm)

    def slice(self, value: Value, axis: int, start: Size, stop: Size, step: int = 1) -> Value:
        """A slice along one axis, or the value itself where it is the whole."""
        if start == 0 and step == 1 and stop == tensor(value).shape[axis]:
            return value
        return self.op("core.slice", value, axis=axis, start=start, stop=stop, step=step)


def tensor(value: Value) -> TensorType:
    """The type of a value, which in a captured graph is always a tensor."""
    assert isinstance(value.type, TensorType)
    return value.type


def rank(value: Value) -> int:
    """Number of axes."""
    return tensor(value).rank


def promoted(*items: Value | Scalar) -> str:
    """The dtype torch computes a binary op of these in."""
    order = ("bool", "u8", "i8", "i32", "i64", "f16", "bf16", "f32", "f64")
    dtypes = [tensor(i).dtype for i in items if isinstance(i, Value)]
    best = max(dtypes, key=order.index)
    scalars = [i for i in items if not isinstance(i, Value)]
    if any(isinstance(s, float) for s in scalars) and not best.startswith(("f", "bf")):
        return "f32"
    if best == "bool" and any(not isinstance(s, bool) for s in scalars):
        return "i64"
    return best


def known_number(value: Value) -> float | None:
    """The number that a value of one element is, if it is computed from constants alone."""
    op = value.producer
    if op is None or op.name == "param" or tensor(value).elements != 1:
        return None
    if op.name in ("core.reshape", "core.broadcast_to", "core.cast"):
        return known_number(op.operands[0])
    operands = [known_number(v) for v in op.operands]
    if any(n is None for n in operands):
        return None
    return float(op.card.reference(*map(np.float64, operands), **op.attrs).item())


def bound_or_none(limit: Value | Scalar | None) -> Value | Scalar | None:
    """A clamp limit, or None where it limits nothing."""
    if isinstance(limit, Value):
        return limit
    return None if limit is None or math.isinf(limit) else limit


def unsupported(what: str) -> CompileError:
    """The error of a builder that knows its op but not this use of it."""
    return CompileError(what)
