"""Splits projections whose rows are q, k and v taking turns, head by head.

    %f = core.linear(%x, %w) : f32[B, S, 192]       %a = core.reshape(%w) {shape = (4, 48, 64)}
    %h = core.reshape(%f) : f32[B, S, 4, 48]    =>  %b = core.slice(%a) {axis = 1, stop = 16}
    %q = core.slice(%h) {axis = 3, stop = 16}       %c = core.reshape(%b) {shape = (64, 64)}
                                                    %f = core.linear(%x, %c) : f32[B, S, 64]
                                                    %q = core.reshape(%f) : f32[B, S, 4, 16]

Which rows of the weight belong together is then known when the model is compiled, and merging
projections lays them one after the other, as the kernels of attention read them. Not split: a
projection that something else reads as a whole, and one sliced only where its rows are in order.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferc.ir.core import Module, Op, Value
from inferc.ir.dims import Size, product
from inferc.passes.base import Pass, PassContext
from inferc.passes.driver import Edit, apply_patterns, pattern
from inferc.passes.match import axis_attr, int_attr, made_by, size_attr, tensor


@dataclass(frozen=True)
class SplitProjections(Pass):
    """Splits projections of heads that take turns."""

    name = "split-projections"
    requires = frozenset({"normalized"})

    def run(self, module: Module, context: PassContext) -> None:
        """Rewrite every function."""
        for func in module:
            apply_patterns(func, context, (split,))


@pattern("core.slice")
def split(op: Op, edit: Edit) -> Value | None:
    """A slice of heads becomes a projection of its own."""
    heads = made_by(op.operands[0], "core.reshape")
    linear = made_by(heads.operands[0], "core.linear") if heads is not None else None
    if heads is None or linear is None:
        return None
    rows = tensor(linear.result).shape[-1]
    tail = _tail(tensor(heads.result).shape, rows)
    axis = axis_attr(op) - (tensor(heads.result).rank - len(tail))
    if not tail or axis < 0:
        return None
    if any(u.name != "core.slice" for u in heads.result.users) or len(linear.result.users) > 1:
        edit.refuse("the projection is read as a whole as well")
        return None
    edit.covers(heads, linear)
    x, *weights = linear.operands
    parts = [_rows(w, tail, axis, op, edit) for w in weights]
    lead = tensor(linear.result).shape[:-1]
    made = edit.add("core.linear", x, *parts, attrs={}, of=[linear, op]).result
    assert tensor(made).shape[:-1] == lead
    return edit.op("core.reshape", made, shape=tensor(op.result).shape)


def _tail(shape: tuple[Size, ...], rows: Size) -> tuple[int, ...]:
    """The last axes of a shape, that the rows of the projection were unfolded to."""
    tail: list[int] = []
    for size in reversed(shape):
        if not isinstance(size, int) or product(tuple(tail)) == rows:
            break
        tail.insert(0, size)
    return tuple(tail) if product(tuple(tail)) == rows else ()


def _rows(weight: Value, tail: tuple[int, ...], axis: int, part: Op, edit: Edit) -> Value:
    """The rows of a weight [N, K] or bias [N] that a slice of the unfolded rows keeps."""
    rest = tensor(weight).shape[1:]
    wide = edit.op("core.reshape", weight, shape=(*tail, *rest))
    start, stop = size_attr(part, "start"), size_attr(part, "stop")
    step = int_attr(part, "step")
    kept = edit.op("core.slice", wide, axis=axis, start=start, stop=stop, step=step)
    count = product(tensor(kept).shape[: len(tail)])
    return edit.op("core.reshape", kept, shape=(count, *rest))
