"""Canonical forms of arithmetic. Every rule is exact, or exact up to the rounding of one operation.

Operands are ordered (computed, then parameters, then constants on the right), neutral elements go,
and one spelling stands for each function: `square(x)` for `x * x` and `x ** 2`, `rsqrt(x)` for
`x ** -0.5` and `1 / sqrt(x)`.
"""

from __future__ import annotations

from inferc.ir.core import Op, Value
from inferc.passes.driver import Edit, Pattern, has_one_use, pattern
from inferc.passes.match import is_scalar, is_unit, made_by, same_shape, scalar, tensor

_COMMUTATIVE = (
    "core.add", "core.mul", "core.maximum", "core.minimum", "core.logical_and", "core.logical_or",
    "core.eq", "core.ne",
)  # fmt: skip
_NEUTRAL = {"core.add": 0.0, "core.sub": 0.0, "core.mul": 1.0, "core.div": 1.0, "core.pow": 1.0}
_POWERS = {2.0: "core.square", 0.5: "core.sqrt", -0.5: "core.rsqrt", -1.0: "core.reciprocal"}
_INVERSE = {"core.add": "core.sub", "core.sub": "core.add"}


@pattern(*_COMMUTATIVE)
def order_operands(op: Op, edit: Edit) -> Value | None:
    """Computed values left, weights right of them, constants last."""
    left, right = op.operands
    if _weight_rank(left, edit) <= _weight_rank(right, edit):
        return None
    return edit.like(op, right, left)


def _weight_rank(value: Value, edit: Edit) -> int:
    if made_by(value, "core.constant"):
        return 2
    return int(edit.is_weight(value))


@pattern(*_NEUTRAL)
def drop_neutral(op: Op, edit: Edit) -> Value | None:
    """Drop x + 0, x - 0, x * 1, x / 1, x ** 1."""
    x, other = op.operands
    same = is_scalar(other, _NEUTRAL[op.name]) and x.type == op.result.type
    return x if same else None


@pattern("core.mul", "core.pow")
def name_powers(op: Op, edit: Edit) -> Value | None:
    """Turn x * x and constant powers into the named functions."""
    x, other = op.operands
    if x.type != op.result.type or not tensor(x).is_float:
        return None
    if op.name == "core.mul":
        return edit.op("core.square", x) if x is other else None
    exponent = scalar(other)
    name = _POWERS.get(exponent) if exponent is not None else None
    return edit.op(name, x) if name is not None else None


@pattern("core.reciprocal", "core.div")
def name_reciprocals(op: Op, edit: Edit) -> Value | None:
    """Turn 1 / x into reciprocal(x) and reciprocal(sqrt(x)) into rsqrt(x)."""
    x = op.operands[-1]
    if x.type != op.result.type or not tensor(x).is_float:
        return None
    if op.name == "core.div":
        return edit.op("core.reciprocal", x) if is_scalar(op.operands[0], 1.0) else None
    root = made_by(x, "core.sqrt")
    if root is None:
        return None
    edit.covers(root)
    return edit.op("core.rsqrt", root.operands[0])


@pattern("core.neg")
def drop_double_neg(op: Op, edit: Edit) -> Value | None:
    """Drop -(-x)."""
    inner = made_by(op.operands[0], "core.neg")
    return inner.operands[0] if inner is not None else None


@pattern("core.cast")
def drop_cast(op: Op, edit: Edit) -> Value | None:
    """Drop a cast to the dtype the value has."""
    x = op.operands[0]
    return x if x.type == op.result.type else None


@pattern("core.add", "core.sub")
def cancel_offset(op: Op, edit: Edit) -> Value | None:
    """Drop (w - c) + c and (w + c) - c on weights: norm weights that a file stores with an offset.

    Only on weights, where the offset is an artefact of storing; it is undone, not computed.
    """
    x, number = op.operands[0], scalar(op.operands[1])
    inner = made_by(x, _INVERSE[op.name])
    if inner is None or number is None or not edit.is_weight(x):
        return None
    same = is_scalar(inner.operands[1], number) and inner.operands[0].type == op.result.type
    return inner.operands[0] if same else None


@pattern("core.add")
def absorb_bias(op: Op, edit: Edit) -> Value | None:
    """Turn linear(x, w) + b into linear(x, w, b)."""
    x, bias = op.operands
    linear = made_by(x, "core.linear")
    if linear is None or len(linear.operands) != 2 or not has_one_use(x, edit.func):
        return None
    if not edit.is_weight(bias) or x.type != op.result.type:
        return None
    if not same_shape(tensor(bias).shape, tensor(x).shape[-1:]):
        return None
    edit.covers(linear)
    return edit.op("core.linear", *linear.operands, bias)


@pattern("core.matmul")
def simplify_matmul(op: Op, edit: Edit) -> Value | None:
    """Turn an outer product into mul, and a product with a weight matrix into linear."""
    a, b = op.operands
    if is_unit(tensor(a).shape[-1]):
        return edit.op("core.mul", a, b)
    plain_weight = tensor(b).rank == 2 and edit.is_weight(b) and not edit.is_weight(a)
    if not plain_weight or tensor(a).dtype not in ("f32", "f64"):
        return None
    return edit.op("core.linear", a, edit.op("core.transpose", b, perm=(1, 0)))


@pattern("core.add")
def choose_by_mask(op: Op, edit: Edit) -> Value | None:
    """Turn x * m + (1 - m) * c into where(m, x, c), where m is a mask of ones and zeros."""
    for chosen, other in (op.operands, op.operands[::-1]):
        product, rest = made_by(chosen, "core.mul"), made_by(other, "core.mul")
        if product is None or rest is None:
            continue
        x, mask = product.operands
        outside, fill = made_by(rest.operands[0], "core.sub"), scalar(rest.operands[1])
        if outside is None or fill is None or outside.operands[1] is not mask:
            continue
        if is_scalar(outside.operands[0], 1.0) and _is_mask(mask) and x.type == op.result.type:
            edit.covers(product, rest, outside)
            zero = edit.op("core.constant", values=(0.0,), shape=(), dtype=tensor(mask).dtype)
            return edit.op("core.where", edit.op("core.ne", mask, zero), x, rest.operands[1])
    return None


def _is_mask(value: Value) -> bool:
    """Whether all elements are 0 or 1: a bool that was cast, seen through views."""
    op = made_by(value, "core.cast", "core.slice", "core.reshape", "core.broadcast_to")
    while op is not None and op.name != "core.cast":
        op = made_by(op.operands[0], "core.cast", "core.slice", "core.reshape", "core.broadcast_to")
    return op is not None and tensor(op.operands[0]).dtype == "bool"


ARITHMETIC: tuple[Pattern, ...] = (
    drop_neutral, name_powers, name_reciprocals, drop_double_neg, drop_cast, cancel_offset,
    absorb_bias, simplify_matmul, choose_by_mask, order_operands,
)  # fmt: skip
