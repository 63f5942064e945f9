"""ATen ops that act on each element alone, casts, and constants of a given shape."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

from inferc.frontend.aten_table import (
    Emitter,
    Scalar,
    aten,
    bound_or_none,
    known_number,
    promoted,
    unsupported,
)
from inferc.ir.core import Value

_UNARY = {
    "abs": "abs",
    "neg": "neg",
    "exp": "exp",
    "log": "log",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "reciprocal": "reciprocal",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "cos": "cos",
    "sin": "sin",
    "erf": "erf",
    "floor": "floor",
    "relu": "relu",
    "silu": "silu",
    "square": "square",
}
_ARITHMETIC = {
    "mul": "mul",
    "multiply": "mul",
    "div": "div",
    "divide": "div",
    "maximum": "maximum",
    "minimum": "minimum",
}
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_LOGICAL = {
    "logical_and": "logical_and",
    "logical_or": "logical_or",
    "bitwise_and": "logical_and",
    "bitwise_or": "logical_or",
}


def _unary(name: str) -> Any:
    def build(e: Emitter, x: Value) -> Value:
        return e.op(f"core.{name}", e.cast(x, e.result.dtype))

    return build


def _arithmetic(name: str) -> Any:
    def build(e: Emitter, a: Value | Scalar, b: Value | Scalar) -> Value:
        dtype = e.result.dtype
        return e.op(f"core.{name}", e.value(a, dtype), e.value(b, dtype))

    return build


def _comparison(name: str) -> Any:
    def build(e: Emitter, a: Value | Scalar, b: Value | Scalar) -> Value:
        dtype = promoted(a, b)
        return e.op(f"core.{name}", e.value(a, dtype), e.value(b, dtype))

    return build


def _logical(name: str) -> Any:
    def build(e: Emitter, a: Value, b: Value) -> Value:
        if promoted(a, b) != "bool":
            raise unsupported("bitwise operations on integers are not supported.")
        return e.op(f"core.{name}", a, b)

    return build


for _aten, _core in _UNARY.items():
    aten(f"aten.{_aten}.default")(_unary(_core))
for _aten, _core in _ARITHMETIC.items():
    aten(f"aten.{_aten}.default", f"aten.{_aten}.Tensor", f"aten.{_aten}.Scalar")(
        _arithmetic(_core)
    )
for _name in _COMPARISONS:
    aten(f"aten.{_name}.Tensor", f"aten.{_name}.Scalar")(_comparison(_name))
for _aten, _core in _LOGICAL.items():
    aten(f"aten.{_aten}.default", f"aten.{_aten}.Tensor")(_logical(_core))


@aten("aten.logical_not.default", "aten.bitwise_not.default")
def _not(e: Emitter, x: Value) -> Value:
    if promoted(x) != "bool":
        raise unsupported("bitwise operations on integers are not supported.")
    return e.op("core.logical_not", x)


@aten("aten.add.Tensor", "aten.add.Scalar")
def _add(e: Emitter, a: Value | Scalar, b: Value | Scalar, *, alpha: Scalar = 1) -> Value:
    return _sum(e, "core.add", a, b, alpha)


@aten("aten.sub.Tensor", "aten.sub.Scalar")
def _sub(e: Emitter, a: Value | Scalar, b: Value | Scalar, *, alpha: Scalar = 1) -> Value:
    return _sum(e, "core.sub", a, b, alpha)


@aten("aten.rsub.Scalar", "aten.rsub.Tensor")
def _rsub(e: Emitter, a: Value | Scalar, b: Value | Scalar, alpha: Scalar = 1) -> Value:
    return _sum(e, "core.sub", b, a, alpha)


def _sum(e: Emitter, op_name: str, a: Value | Scalar, b: Value | Scalar, alpha: Scalar) -> Value:
    dtype = e.result.dtype
    right = e.value(b, dtype)
    if alpha != 1:
        right = e.op("core.mul", right, e.scalar(alpha, dtype))
    return e.op(op_name, e.value(a, dtype), right)


@aten("aten.pow.Tensor_Scalar", "aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def _pow(e: Emitter, x: Value | Scalar, exponent: Value | Scalar) -> Value:
    dtype = e.result.dtype
    if isinstance(x, Value) and not isinstance(exponent, Value):
        special = {2: "square", 0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}.get(exponent)
        base = e.cast(x, dtype)
        if special:
            return e.op(f"core.{special}", base)
        if exponent == 3:  # torch computes x * x * x
            return e.op("core.mul", e.op("core.square", base), base)
    return e.op("core.pow", e.value(x, dtype), e.value(exponent, dtype))


@aten("aten.broadcast_tensors.default")
def _broadcast_tensors(e: Emitter, tensors: list[Value]) -> tuple[Value, ...]:
    return tuple(e.broadcast(v, s) for v, s in zip(tensors, e.out_shapes, strict=True))


@aten("aten.erfinv.default")
def _erfinv(e: Emitter, x: Value) -> Value:
    """Of a number known beforehand: the quantile of the normal distribution."""
    number = known_number(x)
    if number is None:
        raise unsupported("the inverse of erf of computed values is not supported.")
    quantile = NormalDist().inv_cdf((number + 1) / 2) / math.sqrt(2)
    return e.broadcast(e.scalar(quantile, e.result.dtype), e.result.shape)


aten("aten.max.other")(_arithmetic("maximum"))
aten("aten.min.other")(_arithmetic("minimum"))


@aten("aten.log1p.default")
def _log1p(e: Emitter, x: Value) -> Value:
    dtype = e.result.dtype
    return e.op("core.log", e.op("core.add", e.cast(x, dtype), e.scalar(1, dtype)))


@aten("aten.expm1.default")
def _expm1(e: Emitter, x: Value) -> Value:
    """(exp(x) + 1) * tanh(x / 2), which is exact near zero as well."""
    dtype = e.result.dtype
    x = e.cast(x, dtype)
    half = e.op("core.tanh", e.op("core.mul", x, e.scalar(0.5, dtype)))
    return e.op("core.mul", e.op("core.add", e.op("core.exp", x), e.scalar(1, dtype)), half)


@aten("aten.gelu.default")
def _gelu(e: Emitter, x: Value, *, approximate: str = "none") -> Value:
    return e.op("core.gelu", x, approximate=approximate)


@aten("aten.softplus.default")
def _softplus(e: Emitter, x: Value, beta: Scalar = 1, threshold: Scalar = 20) -> Value:
    """Above the threshold torch returns x, which differs by less than float32 can show."""
    if beta != 1 or threshold < 15:
        raise unsupported(f"softplus with beta {beta} and threshold {threshold} is not supported.")
    return e.op("core.softplus", x)


@aten("aten.clamp.default", "aten.clamp.Tensor", "aten.hardtanh.default")
def _clamp(e: Emitter, x: Value, low: Any = None, high: Any = None, **named: Any) -> Value:
    low = bound_or_none(named.get("min", low))
    high = bound_or_none(named.get("max", high))
    dtype, out = e.result.dtype, e.cast(x, e.result.dtype)
    if low is not None:
        out = e.op("core.maximum", out, e.value(low, dtype))
    return out if high is None else e.op("core.minimum", out, e.value(high, dtype))


@aten("aten.clamp_min.default")
def _clamp_min(e: Emitter, x: Value, low: Scalar) -> Value:
    return e.op("core.maximum", x, e.scalar(low, e.result.dtype))


@aten("aten.clamp_max.default")
def _clamp_max(e: Emitter, x: Value, high: Scalar) -> Value:
    return e.op("core.minimum", x, e.scalar(high, e.result.dtype))


@aten("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf")
def _where(e: Emitter, condition: Value, a: Value | Scalar, b: Value | Scalar) -> Value:
    dtype = e.result.dtype
    return e.op("core.where", condition, e.value(a, dtype), e.value(b, dtype))


@aten("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def _masked_fill(e: Emitter, x: Value, condition: Value, fill: Value | Scalar) -> Value:
    return e.op("core.where", condition, e.value(fill, e.result.dtype), x)


@aten(
    "aten._to_copy.default",
    "aten.to.dtype",
    "aten.to.device",
    "aten.to.dtype_layout",
    "aten.to.other",
    "aten.type_as.default",
    "aten.alias.default",
    "aten.clone.default",
    "aten.contiguous.default",
    "aten.detach.default",
    "aten.detach_.default",
    "aten.lift_fresh_copy.default",
    "aten.dropout.default",
)
def _same_value(e: Emitter, x: Value, *_: Any, **__: Any) -> Value:
    """Casts, copies, aliases, inference-time dropout: only the dtype can differ."""
    return e.cast(x, e.result.dtype)


@aten("aten.full.default", "aten.full_like.default", "aten.scalar_tensor.default")
def _full(e: Emitter, first: Any, fill: Scalar | None = None, **_: Any) -> Value:
    value = first if fill is None else fill  # scalar_tensor has the value only
    return e.broadcast(e.scalar(value, e.result.dtype), e.result.shape)


@aten("aten.zeros.default", "aten.zeros_like.default")
def _zeros(e: Emitter, *_: Any, **__: Any) -> Value:
    return e.broadcast(e.scalar(0, e.result.dtype), e.result.shape)


@aten("aten.ones.default", "aten.ones_like.default")
def _ones(e: Emitter, *_: Any, **__: Any) -> Value:
    return e.broadcast(e.scalar(1, e.result.dtype), e.result.shape)
