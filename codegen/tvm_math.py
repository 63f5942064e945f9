"""Float32 functions as TIR expressions: TVM's own become scalar libm calls, one lane at a time.

`bind(expression)` names a subexpression that is used more than once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import tirx

Expr = Any  # a tirx expression; the package has no type stubs
Bind = Callable[[Expr], Expr]

_LOG2E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_EXP = (
    1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1,
    5.0000001201e-1,
)  # fmt: skip
_TANH_P = (
    -2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08,
    1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03,
)  # fmt: skip
_TANH_Q = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)
_ERF_P = (
    -2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
    -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02,
)  # fmt: skip
_ERF_Q = (
    -1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
    -1.42647390514189e-02,
)  # fmt: skip


_LOG1P = tuple(1.0 / n for n in range(17, 0, -2))  # of 2 artanh(s), s up to 1/3


def const(value: float) -> Expr:
    """A float32 constant."""
    return tirx.FloatImm("float32", value)


def _horner(x: Expr, coefficients: tuple[float, ...]) -> Expr:
    total = const(coefficients[0])
    for c in coefficients[1:]:
        total = total * x + const(c)
    return total


def _clamped(x: Expr, limit: float) -> Expr:
    return tirx.max(tirx.min(x, const(limit)), const(-limit))


def exp(x: Expr, bind: Bind) -> Expr:
    """e^x within 2 units in the last place; 0 below -87.3, saturated above 88.3 (Cephes expf)."""
    clamped = bind(tirx.max(tirx.min(x, const(88.3762626647949)), const(-87.3365478515625)))
    n = bind(tirx.floor(clamped * const(_LOG2E) + const(0.5)))
    r = bind(clamped - n * const(_LN2_HIGH) - n * const(_LN2_LOW))
    power = tirx.reinterpret("float32", (n.astype("int32") + 127) << 23)
    value = (_horner(r, _EXP) * (r * r) + r + const(1.0)) * power
    return tirx.Select(x < const(-87.3365478515625), const(0.0), value)


def sigmoid(x: Expr, bind: Bind) -> Expr:
    """1 / (1 + e^-x)."""
    return const(1.0) / (const(1.0) + exp(const(0.0) - x, bind))


def softplus(x: Expr, bind: Bind) -> Expr:
    """log(1 + e^x), accurate where it is tiny: log(1 + u) is 2 artanh(u / (2 + u))."""
    u = bind(exp(const(0.0) - tirx.max(x, const(0.0) - x), bind))
    s = bind(u / (const(2.0) + u))
    square = bind(s * s)
    return tirx.max(x, const(0.0)) + const(2.0) * s * _horner(square, _LOG1P)


def tanh(x: Expr, bind: Bind) -> Expr:
    """Hyperbolic tangent, the rational approximation of Eigen."""
    c = bind(_clamped(x, 7.90531110763549805))
    square = bind(c * c)
    return c * _horner(square, _TANH_P) / _horner(square, _TANH_Q)


def erf(x: Expr, bind: Bind) -> Expr:
    """Error function, the rational approximation of Eigen."""
    c = bind(_clamped(x, 4.0))
    square = bind(c * c)
    return c * _horner(square, _ERF_P) / _horner(square, _ERF_Q)


def gelu(x: Expr, approximate: str, bind: Bind) -> Expr:
    """GELU, by erf or by tanh."""
    if approximate == "tanh":
        inner = const(math.sqrt(2 / math.pi)) * (x + const(0.044715) * x * x * x)
        return const(0.5) * x * (const(1.0) + tanh(inner, bind))
    return const(0.5) * x * (const(1.0) + erf(x * const(1 / math.sqrt(2)), bind))
