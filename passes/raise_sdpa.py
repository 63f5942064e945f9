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
causal nor a causal window. Numbers that grow with the key by a slope for each head are ALiBi.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from inferc.ir.core import Func, Module, Op, Value
from inferc.ir.dims import Dim
from inferc.passes.base import Pass, PassContext
from inferc.passes.bias_values import Slopes, slopes_of
from inferc.passes.driver import Edit, Pattern, apply_patterns, has_one_use
from inferc.passes.mask_values import MaskKind, MaskPart, Unreadable, classify
from inferc.passes.match import (
    attention_mask,
    attention_sinks,
    axis_attr,
    made_by,
    same_shape,
    scalar,
    tensor,
)
from inferc.passes.match_scores import Scores, scores_below, unguarded
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
class _Patterns:
    """Kinds of masks already evaluated: all layers share one."""

    kinds: dict[tuple[tuple[Value, bool], ...], MaskKind | str] = field(default_factory=dict)
    slopes: dict[Value, Slopes | str] = field(default_factory=dict)

    def attention(self, op: Op, edit: Edit) -> Value | None:
        """Raise softmax(scores) @ values."""
        probabilities, guards = unguarded(op.operands[0])
        softmax = made_by(probabilities, "core.softmax")
        if softmax is None or axis_attr(softmax) != tensor(probabilities).rank - 1:
            return None
        scores = scores_below(softmax.operands[0])
        product = made_by(scores.value, "core.matmul")
        if product is None or tensor(scores.value).rank != 4:
            edit.refuse(f"the scores are made by {_maker(scores.value)}, not by a product")
            return None
        if any(not has_one_use(v.result, edit.func) for v in (softmax, product) if not guards):
            edit.refuse("the scores or their softmax have another reader")
            return None
        alibi = self._alibi(edit, scores, product)
        kind = self._kind(edit, scores.masks)
        if kind is None or isinstance(alibi, str):
            if isinstance(alibi, str):
                edit.refuse(alibi)
            return None
        edit.covers(product, *scores.ops, softmax, *guards)
        return _attention(edit, product, op.operands[1], scores, kind, alibi)

    def _alibi(self, edit: Edit, scores: Scores, product: Op) -> Slopes | str | None:
        """Slopes of the biases, with those that were taken for masks; or why there are none."""
        heads = tensor(product.result).shape[1]
        if not isinstance(heads, int):
            return None
        for part in list(scores.masks):
            adds = not part.hides and tensor(part.value).dtype.startswith("f")
            if adds and not isinstance(self._slopes(edit, part.value, heads), str):
                scores.masks.remove(part)
                scores.biases.append((part.value, 1.0))
        total = np.zeros(heads)
        for value, factor in scores.biases:
            slopes = self._slopes(edit, value, heads)
            if isinstance(slopes, str):
                return slopes
            total += factor * np.array(slopes)
        return tuple(float(s) for s in total) if total.any() else None

    def _slopes(self, edit: Edit, value: Value, heads: int) -> Slopes | str:
        if value not in self.slopes:
            try:
                self.slopes[value] = slopes_of(edit.func, value, heads, _longest(edit.func))
            except Unreadable as reason:
                self.slopes[value] = str(reason)
        return self.slopes[value]

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


_MOVES = ("core.transpose", "core.reshape", "core.broadcast_to")


def _maker(value: Value) -> str:
    return value.producer.name if value.producer is not None else "an argument"


def _attention(
    edit: Edit, product: Op, values: Value, scores: Scores, kind: MaskKind, alibi: Slopes | None
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
        window=kind.window, softcap=scores.softcap, alibi=alibi,
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
