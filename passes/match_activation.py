"""Recognises activations that a model spells out in arithmetic.

The argument of tanh is compared as a polynomial, so the order of its factors and the spelling of
the cube do not matter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from inferc.ir.core import Op, Value
from inferc.passes.driver import Edit, has_one_use, pattern
from inferc.passes.match import is_near, is_scalar, made_by, scalar

Polynomial = dict[int, float]  # power -> coefficient
_DEPTH = 8
_SLOPE, _CUBE = math.sqrt(2 / math.pi), math.sqrt(2 / math.pi) * 0.044715


@pattern("core.mul")
def spelled_gelu(op: Op, edit: Edit) -> Value | None:
    """Raise x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) and x/2 (1 + erf(x / sqrt(2)))."""
    for inner, rest in _products(op):
        one_plus = made_by(inner, "core.add")
        if one_plus is None or not is_scalar(one_plus.operands[1], 1.0):
            continue
        curve = made_by(one_plus.operands[0], "core.tanh", "core.erf")
        if curve is None or not _is_gelu_curve(curve, rest):
            continue
        if not all(has_one_use(v, edit.func) for v in (inner, curve.result)):
            edit.refuse("a part of the activation has another reader")
            continue
        edit.covers(curve, one_plus)
        approximate = "tanh" if curve.name == "core.tanh" else "none"
        return edit.op("core.gelu", _base(rest), approximate=approximate)
    return None


@pattern("core.mul")
def spelled_silu(op: Op, edit: Edit) -> Value | None:
    """Raise x * sigmoid(x)."""
    for x, factor in (op.operands, op.operands[::-1]):
        gate = made_by(factor, "core.sigmoid")
        if gate is not None and gate.operands[0] is x and has_one_use(factor, edit.func):
            edit.covers(gate)
            return edit.op("core.silu", x)
    return None


def _products(op: Op) -> Iterator[tuple[Value, list[Value]]]:
    """Each factor of a product of products, with the other factors."""
    factors: list[Value] = []
    for value in op.operands:
        inner = made_by(value, "core.mul")
        factors += inner.operands if inner is not None else [value]
    for i, factor in enumerate(factors):
        yield factor, factors[:i] + factors[i + 1 :]


def _base(factors: list[Value]) -> Value:
    """The factor that is not a number."""
    return next(v for v in factors if scalar(v) is None)


def _is_gelu_curve(curve: Op, factors: list[Value]) -> bool:
    """Whether the factors are x and a half, and the curve is that of GELU of x."""
    numbers = [n for n in map(scalar, factors) if n is not None]
    if len(numbers) != len(factors) - 1 or not is_near(math.prod(numbers), 0.5):
        return False
    argument = polynomial(curve.operands[0], _base(factors))
    wanted = {1: _SLOPE, 3: _CUBE} if curve.name == "core.tanh" else {1: math.sqrt(0.5)}
    return (
        argument is not None
        and argument.keys() == wanted.keys()
        and all(is_near(argument[k], wanted[k]) for k in wanted)
    )


def polynomial(value: Value, x: Value, depth: int = _DEPTH) -> Polynomial | None:
    """The value as a polynomial of x; None if it is none, or is nested deeper than `depth`."""
    number = scalar(value)
    if value is x or number is not None:
        return {1: 1.0} if value is x else {0: number or 0.0}
    op = made_by(value, "core.add", "core.mul", "core.div", "core.square", "core.pow")
    if op is None or depth == 0:
        return None
    parts = [polynomial(v, x, depth - 1) for v in op.operands]
    known = [p for p in parts if p is not None]
    return _combined(op.name, known) if len(known) == len(parts) else None


def _combined(name: str, parts: list[Polynomial]) -> Polynomial | None:
    left, right = parts[0], parts[-1]
    if name == "core.add":
        return {k: left.get(k, 0.0) + right.get(k, 0.0) for k in left | right}
    if name in ("core.mul", "core.square"):
        return _times(left, right)
    number = right.get(0) if right.keys() == {0} else None
    if number is None:
        return None
    if name == "core.div":
        return {k: v / number for k, v in left.items()} if number else None
    if number not in (2.0, 3.0):
        return None
    squared = _times(left, left)
    return squared if number == 2.0 else _times(squared, left)


def _times(left: Polynomial, right: Polynomial) -> Polynomial:
    out: Polynomial = {}
    for i, a in left.items():
        for j, b in right.items():
            out[i + j] = out.get(i + j, 0.0) + a * b
    return out
