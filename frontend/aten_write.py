"""ATen ops that write parts of a tensor, as functionalising leaves them: the parts joined anew."""

from __future__ import annotations

from typing import Any

from inferc.frontend.aten_shape import slice_bound
from inferc.frontend.aten_table import Emitter, aten, rank, tensor, unsupported
from inferc.ir.core import Value
from inferc.ir.dims import Size


@aten("aten.new_empty.default", "aten.new_zeros.default", "aten.empty_like.default")
def _empty(e: Emitter, *_: Any, **__: Any) -> Value:
    """Memory that is written before it is read: zeros, which the writes replace."""
    return e.broadcast(e.scalar(0, e.result.dtype), e.result.shape)


@aten("aten.new_ones.default")
def _ones(e: Emitter, *_: Any, **__: Any) -> Value:
    return e.broadcast(e.scalar(1, e.result.dtype), e.result.shape)


@aten("aten.copy.default")
def _copy(e: Emitter, _target: Value, source: Value, *_: Any) -> Value:
    return e.broadcast(e.cast(source, e.result.dtype), e.result.shape)


@aten("aten.slice_scatter.default")
def _slice_scatter(
    e: Emitter,
    x: Value,
    source: Value,
    axis: int = 0,
    start: Any = None,
    stop: Any = None,
    step: int = 1,
) -> Value:
    """`x` with a part along one axis replaced."""
    axis %= rank(x)
    size = tensor(x).shape[axis]
    low, high = slice_bound(start, 0, size), slice_bound(stop, size, size)
    source = e.cast(source, e.result.dtype)
    if step != 1:
        return _every(e, x, source, axis, (low, high, step))
    before = [] if low == 0 else [e.slice(x, axis, 0, low)]
    after = [] if high == size else [e.slice(x, axis, high, size)]
    pieces = [*before, source, *after]
    return pieces[0] if len(pieces) == 1 else e.op("core.concat", *pieces, axis=axis)


def _every(e: Emitter, x: Value, source: Value, axis: int, span: tuple[Size, Size, int]) -> Value:
    """Every so many elements replaced, one by one: they are few (frequencies of rotary)."""
    size, (low, high, step) = tensor(x).shape[axis], span
    if not (isinstance(size, int) and isinstance(low, int) and isinstance(high, int)):
        raise unsupported("writing every other element of a symbolic axis is not supported.")
    written = {place: number for number, place in enumerate(range(low, high, step))}
    pieces = [
        e.slice(source, axis, written[i], written[i] + 1)
        if i in written
        else e.slice(x, axis, i, i + 1)
        for i in range(size)
    ]
    return e.op("core.concat", *pieces, axis=axis)


@aten("aten.select_scatter.default")
def _select_scatter(e: Emitter, x: Value, source: Value, axis: int, index: int) -> Value:
    axis %= rank(x)
    shape = tensor(x).shape
    place = slice_bound(index, 0, shape[axis])
    wide = e.reshape(source, (*shape[:axis], 1, *shape[axis + 1 :]))
    return _slice_scatter(e, x, wide, axis, place, place + 1)
