"""Raises attention from the ops it is spelled in.

    %s = core.matmul(%q, %kt)
    %c = core.mul(%s, %scale)
    %m = core.add(%c, %mask)              =>   %y = nn.attention(%q, %k, %v) {scale = 0.25}
    %p = core.softmax(%m) {axis = 3}
    %y = core.matmul(%p, %v)

Queries, keys and values are `[B, H, S, D]` here, `[B, S, H, D]` there. Taken in: scaling by a
number anywhere before the softmax, soft-capping, masks that are added or chosen (also as operand of
nn.attention), a guard against rows without keys, the subtraction of the largest score, heads of
keys that are repeated for groups of queries.

What a mask does is found by evaluating it (`mask_values`), so its spelling does not matter.
Refused: masks that depend on tokens or weights, differ between heads, add numbers, or are neither
causal nor a causal window.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from inferc.ir.core import Func, Module, Op, Value
from inferc.ir.dims import Dim
from inferc.passes.base import Pass, PassContext
from inferc.passes.driver import Edit, Pattern, apply_patterns, has_one_use
from inferc.passes.mask_values import HIDDEN, MaskKind, MaskPart, Unreadable, classify
from inferc.passes.match import (
    attention_mask,
    attention_sinks,
    axis_attr,
    made_by,
    same_shape,
    scalar,
    tensor,
)
from inferc.passes.repeated_heads import Source, source_of_heads


@dataclass(frozen=True)
class RaiseSdpa(Pass):
    """Raises attention."""

    name = "raise-sdpa"
    requires = frozenset({"normalized"})

    def run(self, module: Module, context: PassContext) -> None:
        """Rewrite every function that can be one: its first arguments are ids and positions."""
        for func in module:
            patterns = _Patterns()
            apply_patterns(
                func,
                context,
                (
                    Pattern("attention", frozenset({"core.matmul"}), patterns.attention),
                    Pattern("mask", frozenset({"nn.attention"}), patterns.mask_operand),
                    Pattern("heads", frozenset({"nn.attention"}), plain_heads),
                ),
            )


@dataclass
class _Scores:
    """What is done to the product of queries and keys, collected from the softmax upwards."""

    value: Value
    scale: float = 1.0
    softcap: float | None = None
    masks: list[MaskPart] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)


@dataclass
class _Patterns:
    """Kinds of masks already evaluated: all layers share one."""

    kinds: dict[tuple[tuple[Value, bool], ...], MaskKind | str] = field(default_factory=dict)

    def attention(self, op: Op, edit: Edit) -> Value | None:
        """Raise softmax(scores) @ values."""
        probabilities, guards = _unguarded(op.operands[0])
        softmax = made_by(probabilities, "core.softmax")
        if softmax is None or axis_attr(softmax) != tensor(probabilities).rank - 1:
            return None
        scores = _scores(softmax.operands[0])
        product = made_by(scores.value, "core.matmul")
        if product is None or tensor(scores.value).rank != 4:
            edit.refuse(f"the scores are made by {_maker(scores.value)}, not by a product")
            return None
        if any(not has_one_use(v.result, edit.func) for v in (softmax, product) if not guards):
            edit.refuse("the scores or their softmax have another reader")
            return None
        kind = self._kind(edit, scores.masks)
        if kind is None:
            return None
        edit.covers(product, *scores.ops, softmax, *guards)
        return _attention(edit, product, op.operands[1], scores, kind)

    def mask_operand(self, op: Op, edit: Edit) -> Value | None:
        """Read a computed mask of nn.attention; nn.mask is left to raise-attention."""
        mask, sinks = attention_mask(op), attention_sinks(op)
        if mask is None or made_by(mask, "nn.mask"):
            return None
        kind = self._kind(edit, [MaskPart(mask)])
        if kind is None:
            return None
        windows = [w for w in (op.attrs["window"], kind.window) if isinstance(w, int)]
        causal = bool(op.attrs["causal"]) or kind.causal
        attrs = {**op.attrs, "causal": causal, "window": min(windows, default=None)}
        return edit.like(op, *op.operands[:3], *([] if sinks is None else [sinks]), attrs=attrs)

    def _kind(self, edit: Edit, masks: list[MaskPart]) -> MaskKind | None:
        if not masks:
            return MaskKind(False)
        key = tuple((m.value, m.hides) for m in masks)
        if key not in self.kinds:
            try:
                self.kinds[key] = classify(edit.func, masks, _longest(edit.func))
            except Unreadable as reason:
                self.kinds[key] = str(reason)
        kind = self.kinds[key]
        if isinstance(kind, str):
            edit.refuse(kind)
            return None
        return kind


def _longest(func: Func) -> int:
    """Tokens of the longest sequence."""
    shape = tensor(func.args[0]).shape if func.args else ()
    length = shape[-1] if shape else 1
    if isinstance(length, Dim):
        return max(func.symbols[name].high for name in length.symbols())
    return length


def _unguarded(value: Value) -> tuple[Value, list[Op]]:
    """The p of where(p != p, 0, p), and the ops around it: no row of a causal mask is empty."""
    chosen = made_by(value, "core.where")
    test = made_by(chosen.operands[0], "core.ne") if chosen is not None else None
    if chosen is None or test is None or scalar(chosen.operands[1]) != 0.0:
        return value, []
    inner = chosen.operands[2]
    if test.operands[0] is not inner or test.operands[1] is not inner:
        return value, []
    return inner, [test, chosen]


def _scores(value: Value) -> _Scores:
    """Walk from the softmax up to the product."""
    found = _Scores(value)
    while (step := _step(found)) is not None:
        op, below = step
        found.ops.insert(0, op)
        found.value = below
    return found


def _step(found: _Scores) -> tuple[Op, Value] | None:
    """One op on the way up, and the value below it; notes in `found` what it does."""
    op = found.value.producer
    if op is None:
        return None
    if op.name == "core.sub":  # softmax does not change when every score loses the same
        largest = made_by(op.operands[1], "core.amax")
        return (op, op.operands[0]) if largest and largest.operands[0] is op.operands[0] else None
    early = found.scale == 1.0 and found.softcap is None
    if early and op.name in ("core.where", "core.add"):
        return _masked(op, found)
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


def _masked(op: Op, found: _Scores) -> tuple[Op, Value] | None:
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


_MOVES = ("core.transpose", "core.reshape", "core.broadcast_to")
_SCORE_OPS = ("core.add", "core.where", "core.mul", "core.div", "core.sub", "core.tanh")


def _is_scores(value: Value) -> bool:
    """Whether a product of two values lies above, past the ops that scores go through."""
    op = value.producer
    while op is not None and op.name in _SCORE_OPS:
        if op.name in ("core.where", "core.add"):
            return any(_is_scores(v) for v in op.operands)
        op = op.operands[0].producer
    return op is not None and op.name == "core.matmul"


def _maker(value: Value) -> str:
    return value.producer.name if value.producer is not None else "an argument"


def _attention(
    edit: Edit, product: Op, values: Value, scores: _Scores, kind: MaskKind
) -> Value | None:
    query, keys = product.operands
    query, factor = _without_factor(query, edit)
    keys, other = _without_factor(keys, edit)
    heads_last = (0, 2, 1, 3)
    q = edit.op("core.transpose", query, perm=heads_last)
    k = edit.op("core.transpose", keys, perm=(0, 3, 1, 2))
    v = edit.op("core.transpose", values, perm=heads_last)
    if not same_shape(tensor(q).shape[:2], tensor(k).shape[:2]):
        edit.refuse(f"queries {q.type} and keys {k.type} are not of the same tokens")
        return None
    made = edit.op(
        "nn.attention", q, k, v, scale=scores.scale * factor * other, causal=kind.causal,
        window=kind.window, softcap=scores.softcap,
    )  # fmt: skip
    return edit.op("core.transpose", made, perm=heads_last)


def _without_factor(value: Value, edit: Edit) -> tuple[Value, float]:
    """The x and c of x * c or x / (1 / c), also where the product was moved."""
    op = made_by(value, "core.mul", "core.div", *_MOVES)
    if op is None:
        return value, 1.0
    if op.name in _MOVES:
        inner, factor = _without_factor(op.operands[0], edit)
        return (value, 1.0) if factor == 1.0 else (edit.like(op, inner), factor)
    number = scalar(op.operands[1])
    if number is None or number == 0.0 or op.operands[0].type != value.type:
        return value, 1.0
    inner, factor = _without_factor(op.operands[0], edit)
    return inner, factor * (number if op.name == "core.mul" else 1 / number)


def plain_heads(op: Op, edit: Edit) -> Value | None:
    """Let attention read heads that were repeated, or moved to and fro, where they come from."""
    sources = [source_of_heads(edit.func, v) for v in op.operands[:3]]
    groups = [
        tensor(v).shape[2] if s is None else s.shape[2]
        for s, v in zip(sources, op.operands[:3], strict=True)
    ]
    if not any(sources) or groups[1] != groups[2]:
        return None
    operands = list(op.operands)
    for i, source in enumerate(sources):
        if source is not None:
            edit.covers(*source.ops)
            operands[i] = _taken(source, edit)
    return edit.like(op, *operands)


def _taken(source: Source, edit: Edit) -> Value:
    value = source.value
    if source.perm != tuple(range(len(source.perm))):
        value = edit.op("core.transpose", value, perm=source.perm)
    if not same_shape(tensor(value).shape, source.shape):
        value = edit.op("core.reshape", value, shape=source.shape)
    return value
