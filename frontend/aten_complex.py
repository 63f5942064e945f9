"""Complex numbers, in which some models write rotary embedding, as pairs of real values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from inferc.frontend.aten_table import ATEN, Emitter, Scalar, tensor, unsupported
from inferc.ir.core import Value


@dataclass(frozen=True)
class Complex:
    """A complex tensor."""

    real: Value
    imaginary: Value


def is_complex(name: str, args: list[Any]) -> bool:
    """Whether an op has complex operands or results."""
    return any(isinstance(a, Complex) for a in args) or name in COMPLEX


# What acts on both parts alike, as on a real tensor of the same shape.
_MOVES = frozenset(
    """
    view _unsafe_view reshape unsqueeze squeeze expand transpose permute slice select repeat
    _to_copy to type_as alias clone contiguous detach
    """.split()
)


def call(e: Emitter, name: str, args: list[Any], kwargs: dict[str, Any]) -> Value | Complex:
    """An op with complex operands or a complex result."""
    builder = _BUILDERS.get(name)
    if builder is not None:
        return builder(e, *args, **kwargs)
    if name.split(".")[1] in _MOVES and isinstance(args[0], Complex):
        parts = [ATEN[name](e, part, *args[1:]) for part in (args[0].real, args[0].imaginary)]
        return Complex(*parts)
    raise unsupported("this operation on complex numbers is not known.")


def _polar(e: Emitter, size: Value, angle: Value) -> Complex:
    cos, sin = e.op("core.cos", angle), e.op("core.sin", angle)
    return Complex(e.op("core.mul", size, cos), e.op("core.mul", size, sin))


def _view_as_complex(e: Emitter, x: Value) -> Complex:
    shape = tensor(x).shape
    axis = len(shape) - 1
    parts = [e.reshape(e.slice(x, axis, i, i + 1), shape[:-1]) for i in (0, 1)]
    return Complex(*parts)


def _view_as_real(e: Emitter, x: Complex) -> Value:
    shape = (*tensor(x.real).shape, 1)
    parts = [e.reshape(p, shape) for p in (x.real, x.imaginary)]
    return e.op("core.concat", *parts, axis=len(shape) - 1)


def _mul(e: Emitter, a: Complex | Value | Scalar, b: Complex | Value | Scalar) -> Complex:
    if not isinstance(a, Complex):
        a, b = b, a
    assert isinstance(a, Complex)
    if not isinstance(b, Complex):
        factor = e.value(b, tensor(a.real).dtype)
        return Complex(e.op("core.mul", a.real, factor), e.op("core.mul", a.imaginary, factor))
    ac, bd = e.op("core.mul", a.real, b.real), e.op("core.mul", a.imaginary, b.imaginary)
    bc, ad = e.op("core.mul", a.imaginary, b.real), e.op("core.mul", a.real, b.imaginary)
    return Complex(e.op("core.sub", ac, bd), e.op("core.add", bc, ad))


_BUILDERS: dict[str, Callable[..., Value | Complex]] = {
    "aten.polar.default": _polar,
    "aten.view_as_complex.default": _view_as_complex,
    "aten.view_as_real.default": _view_as_real,
    "aten.mul.Tensor": _mul,
}
COMPLEX = frozenset(_BUILDERS) - {"aten.mul.Tensor"}  # ops that have no real form
