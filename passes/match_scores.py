"""Walks from a softmax up to the product of queries and keys, and notes what happens on the way."""

from __future__ import annotations

from dataclasses import dataclass, field

from inferc.ir.core import Op, Value
from inferc.passes.mask_values import HIDDEN, MaskPart
from inferc.passes.match import made_by, same_shape, scalar, tensor

_LOWEST = -1e30  # below every score, above the lowest float32


@dataclass
class Scores:
    """What is done to the product of queries and keys, collected from the softmax upwards."""

    value: Value
    scale: float = 1.0
    softcap: float | None = None
    masks: list[MaskPart] = field(default_factory=list)
    biases: list[tuple[Value, float]] = field(default_factory=list)  # and what multiplies each
    ops: list[Op] = field(default_factory=list)


def unguarded(value: Value) -> tuple[Value, list[Op]]:
    """The p of where(p != p, 0, p), and the ops around it: no row of a causal mask is empty."""
    chosen = made_by(value, "core.where")
    test = made_by(chosen.operands[0], "core.ne") if chosen is not None else None
    if chosen is None or test is None or scalar(chosen.operands[1]) != 0.0:
        return value, []
    inner = chosen.operands[2]
    if test.operands[0] is not inner or test.operands[1] is not inner:
        return value, []
    return inner, [test, chosen]


def scores_below(value: Value) -> Scores:
    """Walk from the softmax up to the product."""
    found = Scores(value)
    while (step := _step(found)) is not None:
        op, below = step
        found.ops.insert(0, op)
        found.value = below
    return found


def _step(found: Scores) -> tuple[Op, Value] | None:
    """One op on the way up, and the value below it; notes in `found` what it does."""
    op = found.value.producer
    if op is None:
        return None
    if op.name == "core.sub":  # softmax does not change when every score loses the same
        largest = made_by(op.operands[1], "core.amax")
        return (op, op.operands[0]) if largest and largest.operands[0] is op.operands[0] else None
    if op.name == "core.maximum":  # no score is as low: it keeps hidden ones from being infinite
        floor = scalar(op.operands[1])
        return (op, op.operands[0]) if floor is not None and floor <= _LOWEST else None
    early = found.scale == 1.0 and found.softcap is None
    if early and op.name in ("core.where", "core.add"):
        return _masked(op, found)
    if op.name == "core.add" and found.softcap is None:  # scaled together with the scores
        return _biased(op, found)
    if op.name not in ("core.mul", "core.div"):
        return None
    number = scalar(op.operands[1])
    if number is None or number == 0.0:
        return None
    capped = _softcap(op, number) if found.softcap is None and found.scale == 1.0 else None
    if capped is not None:
        found.softcap = abs(number)
        return op, capped
    found.scale *= number if op.name == "core.mul" else 1 / number
    return op, op.operands[0]


def _softcap(op: Op, cap: float) -> Value | None:
    """The x of tanh(x / cap) * cap."""
    curve = made_by(op.operands[0], "core.tanh") if op.name == "core.mul" else None
    inner = made_by(curve.operands[0], "core.div", "core.mul") if curve is not None else None
    by = scalar(inner.operands[1]) if inner is not None else None
    if inner is None or by is None:
        return None
    factor = by if inner.name == "core.mul" else 1 / by
    return inner.operands[0] if abs(factor * cap - 1) < 1e-6 else None


def _masked(op: Op, found: Scores) -> tuple[Op, Value] | None:
    """Scores plus a mask, or scores where a mask allows them."""
    if op.name == "core.add":
        sides = [op.operands, op.operands[::-1]]
        for scores, mask in sides:
            if same_shape(tensor(scores).shape, tensor(op.result).shape) and _is_scores(scores):
                found.masks.append(MaskPart(mask))
                return op, scores
        return None
    condition, yes, no = op.operands
    for scores, other, hides in ((yes, no, False), (no, yes, True)):
        fill = scalar(other)
        if fill is not None and fill <= HIDDEN and _is_scores(scores):
            found.masks.append(MaskPart(condition, hides))
            return op, scores
    return None


def _biased(op: Op, found: Scores) -> tuple[Op, Value] | None:
    for scores, bias in (op.operands, op.operands[::-1]):
        if same_shape(tensor(scores).shape, tensor(op.result).shape) and _is_scores(scores):
            found.biases.append((bias, found.scale))
            return op, scores
    return None


_SCORE_OPS = (
    "core.maximum",
    "core.add",
    "core.where",
    "core.mul",
    "core.div",
    "core.sub",
    "core.tanh",
)


def _is_scores(value: Value) -> bool:
    """Whether a product of two values lies above, past the ops that scores go through."""
    op = value.producer
    while op is not None and op.name in _SCORE_OPS:
        if op.name in ("core.where", "core.add"):
            return any(_is_scores(v) for v in op.operands)
        op = op.operands[0].producer
    return op is not None and op.name == "core.matmul"
