"""Prints element-wise IR as expressions of the SIMD type `f32x16` (see `simd.h`, `vmath.h`).

Values of one row are printed sixteen lanes at a time. A comparison is a vector of ones and zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from inferc.codegen.group import has_rows, is_static, row_elements, tensor, through_reshape
from inferc.ir.core import Op, Value


class Unprintable(ValueError):
    """An op, or a shape, that the printer has no expression for; the message is the reason."""


@dataclass(frozen=True)
class Line:
    """A printed statement: `const f32x16 name = expression;`."""

    name: str
    expression: str


_UNARY: dict[str, str] = {
    "core.neg": "-{0}",
    "core.abs": "abs({0})",
    "core.exp": "exp({0})",
    "core.log": "log({0})",
    "core.sqrt": "sqrt({0})",
    "core.rsqrt": "splat(1.0f) / sqrt({0})",
    "core.reciprocal": "splat(1.0f) / {0}",
    "core.tanh": "tanh({0})",
    "core.sigmoid": "sigmoid({0})",
    "core.erf": "erf({0})",
    "core.relu": "max({0}, splat(0.0f))",
    "core.silu": "silu({0})",
    "core.softplus": "softplus({0})",
    "core.square": "{0} * {0}",
    "core.logical_not": "splat(1.0f) - {0}",
}
_BINARY: dict[str, str] = {
    "core.add": "{0} + {1}",
    "core.sub": "{0} - {1}",
    "core.mul": "{0} * {1}",
    "core.div": "{0} / {1}",
    "core.maximum": "max({0}, {1})",
    "core.minimum": "min({0}, {1})",
    "core.logical_and": "min({0}, {1})",
    "core.logical_or": "max({0}, {1})",
    "core.lt": "select_lt({0}, {1}, 1.0f, 0.0f)",
    "core.gt": "select_lt({1}, {0}, 1.0f, 0.0f)",
    "core.le": "select_lt({1}, {0}, 0.0f, 1.0f)",
    "core.ge": "select_lt({0}, {1}, 0.0f, 1.0f)",
}
_GELU = {"none": "gelu_erf({0})", "tanh": "gelu_tanh({0})"}
_ACTIVATION = {
    "silu": "silu({0})",
    "gelu": "gelu_erf({0})",
    "gelu_tanh": "gelu_tanh({0})",
    "relu": "max({0}, splat(0.0f))",
    "sigmoid": "sigmoid({0})",
}
_POWERS = {2.0: "{0} * {0}", 0.5: "sqrt({0})", -0.5: "splat(1.0f) / sqrt({0})", 1.0: "{0}"}


def literal(value: float | int | bool) -> str:
    """A float32 literal that reads back exactly."""
    number = float(value)
    if math.isnan(number):
        return '__builtin_nanf("")'
    if math.isinf(number):
        return "__builtin_inff()" if number > 0 else "-__builtin_inff()"
    return f"{float(number).hex()}f"


def uniform_constant(op: Op) -> float:
    """The value of a constant whose elements are all equal. Raises Unprintable otherwise."""
    values = op.attrs["values"]
    assert isinstance(values, tuple)
    distinct = set(values)
    if len(distinct) != 1:
        raise Unprintable("a constant of several different values")
    return float(distinct.pop())  # type: ignore[arg-type]


@dataclass
class Printer:
    """Prints values of rows of `width` elements.

    Attributes:
        width: elements of one row.
        known: expressions of values that are not to be printed (accumulators, loaded arguments).
        lines: what has been printed, in order.
    """

    width: int
    known: dict[Value, str] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)

    def value(self, value: Value) -> str:
        """An expression for a value; prints what it depends on. Raises Unprintable."""
        if value in self.known:
            return self.known[value]
        op = value.producer
        if op is None:
            raise Unprintable(f"%{value.hint}: {value.type} is not loaded")
        if op.name == "core.constant":
            text = f"splat({literal(uniform_constant(op))})"
        elif op.name == "core.reshape":
            text = self._reshaped(op)
        else:
            self._check_shapes(op)
            text = self._named(op)
        self.known[value] = text
        return text

    def _reshaped(self, op: Op) -> str:
        source = through_reshape(op.result)
        if row_elements(tensor(source)) != row_elements(tensor(op.result)):
            raise Unprintable(f"{op.name} that mixes rows")
        return self.value(source)

    def _named(self, op: Op) -> str:
        operands = [self.value(v) for v in op.operands]
        expression = vector_form(op).format(*operands)
        name = f"v{len(self.lines)}"
        self.lines.append(Line(name, expression))
        return name

    def _check_shapes(self, op: Op) -> None:
        """Operands are whole rows of the result's shape, vectors of the width, or single values."""
        result = tensor(op.result)
        if row_elements(result) not in (1, self.width):
            raise Unprintable(f"{op.name} gives {result}, rows here have {self.width} elements")
        for operand in op.operands:
            type_ = tensor(operand)
            count = row_elements(type_)
            same = type_.shape == result.shape or type_.shape == result.shape[-type_.rank :]
            flat = result.rank == 2 and count in (1, self.width)
            if count != 1 and not same and not flat:
                raise Unprintable(f"{op.name} broadcasts {type_} to {result}")


def vector_form(op: Op) -> str:
    """The expression of an op over vectors `{0}`, `{1}`, ... Raises Unprintable."""
    if op.name in _UNARY:
        return _UNARY[op.name]
    if op.name in _BINARY:
        return _BINARY[op.name]
    if op.name == "core.gelu":
        return _GELU[str(op.attrs["approximate"])]
    if op.name == "nn.glu":
        return _ACTIVATION[str(op.attrs["activation"])] + " * {1}"
    if op.name == "core.where":
        return "select_lt(splat(0.5f), {0}, {1}, {2})"
    if op.name == "core.cast" and op.attrs["dtype"] == "f32":
        return "{0}"
    if op.name == "core.pow":
        return _power(op)
    raise Unprintable(f"{op.name} is not element-wise, or has no SIMD form")


def _power(op: Op) -> str:
    exponent = op.operands[1].producer
    if exponent is None or exponent.name != "core.constant":
        raise Unprintable("core.pow with an exponent that is no constant")
    value = uniform_constant(exponent)
    if value not in _POWERS:
        raise Unprintable(f"core.pow with the exponent {value}")
    return _POWERS[value]


@dataclass(frozen=True)
class Load:
    """How an argument is read: pointer member `name` of the argument `index`."""

    name: str
    index: int
    expression: str


def load_argument(arg: Value, width: int, address: Callable[[str], str]) -> Load:
    """Expression that reads an argument's lanes. Raises Unprintable if its shape does not fit.

    `address(pointer)` is the address of the current lanes in a matrix of rows of `width`.
    """
    name = f"a{arg.index}"
    type_ = tensor(arg)
    if type_.dtype not in ("f32", "bf16", "f16") or (has_rows(type_) and type_.dtype != "f32"):
        raise Unprintable(f"%{arg.hint}: {type_} is no float vector")
    count = row_elements(type_)
    if has_rows(type_) and count == width:
        return Load(name, arg.index, f"load({address(name)}, lanes)")
    if has_rows(type_) and count == 1:
        return Load(name, arg.index, f"splat({name}[row])")
    if is_static(type_) and count == width:
        return Load(name, arg.index, f"load({name} + col, lanes)")
    if is_static(type_) and count == 1:
        return Load(name, arg.index, f"splat({name}[0])")
    raise Unprintable(f"%{arg.hint}: {type_} does not fit rows of {width} elements")


def reachable(roots: Iterable[Value], stop: Mapping[Value, str]) -> list[Value]:
    """Body arguments that the roots depend on, not looking behind `stop`."""
    seen: dict[Value, None] = {}
    stack = list(roots)
    while stack:
        value = stack.pop()
        if value in seen or value in stop:
            continue
        seen[value] = None
        if value.producer is not None:
            stack.extend(value.producer.operands)
    return sorted((v for v in seen if v.producer is None), key=lambda v: v.index)
