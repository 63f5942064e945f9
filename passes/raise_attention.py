"""Folds masks into the attention that reads them.

    %m = nn.mask(%positions) {window = 8}
    %a = nn.attention(%q, %k, %v, %m) {scale = 0.25, causal = false}
                          =>    %a = nn.attention(%q, %k, %v) {scale = 0.25, window = 8}

A mask of a kind that attention knows is structure, not data: afterwards nothing of size S x S is
left. Refused by name: masks that are not causal, masks that are computed some other way, and masks
of other positions than the function's own.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferc.ir.core import Module, Op, Value
from inferc.passes.base import Pass, PassContext
from inferc.passes.driver import Edit, apply_patterns, pattern
from inferc.passes.match import attention_mask, attention_sinks, made_by


@dataclass(frozen=True)
class RaiseAttention(Pass):
    """Folds masks into attention."""

    name = "raise-attention"
    requires = frozenset({"normalized"})
    ensures = frozenset({"raised"})

    def run(self, module: Module, context: PassContext) -> None:
        """Rewrite every function."""
        for func in module:
            apply_patterns(func, context, (fold_mask,))


@pattern("nn.attention")
def fold_mask(op: Op, edit: Edit) -> Value | None:
    """The mask operand becomes `causal`, `window` and `chunk`."""
    seen, sinks = attention_mask(op), attention_sinks(op)
    if seen is None:
        return None
    mask = made_by(seen, "nn.mask")
    reason = _refusal(mask, seen)
    if mask is None or reason is not None:
        edit.refuse(reason or "")
        return None
    edit.covers(mask)
    windows = [w for w in (op.attrs["window"], mask.attrs["window"]) if isinstance(w, int)]
    chunk = mask.attrs["chunk"]
    if chunk is not None and op.attrs["chunk"] not in (None, chunk):
        edit.refuse(f"attention in chunks of {op.attrs['chunk']} and of {chunk} tokens at once")
        return None
    attrs = {**op.attrs, "causal": True, "window": min(windows, default=None)}
    if chunk is not None:
        attrs["chunk"] = chunk
    return edit.like(op, *op.operands[:3], *([] if sinks is None else [sinks]), attrs=attrs)


def _refusal(mask: Op | None, seen: Value) -> str | None:
    if mask is None:
        maker = seen.producer.name if seen.producer is not None else "an argument"
        return f"the mask is computed by {maker}; only nn.mask can be folded"
    if mask.attrs["kind"] != "causal":
        return f"attention with a {mask.attrs['kind']} mask cannot be served token by token"
    if mask.operands[0].producer is not None:
        return "the mask is for other positions than the function's own"
    return None
