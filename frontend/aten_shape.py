"""ATen ops that move elements: reshapes, transposes, slices, concatenations."""

from __future__ import annotations

from typing import Any

from inferc.frontend.aten_table import Emitter, aten, rank, tensor, unsupported
from inferc.ir.core import Value
from inferc.ir.dims import Dim, Size, evaluate


@aten(
    "aten.view.default",
    "aten._unsafe_view.default",
    "aten.reshape.default",
    "aten.reshape_as.default",
    "aten.view_as.default",
    "aten.unsqueeze.default",
    "aten.squeeze.dim",
    "aten.squeeze.dims",
    "aten.squeeze.default",
    "aten.flatten.using_ints",
    "aten.unflatten.int",
)
def _reshape(e: Emitter, x: Value, *_: Any) -> Value:
    """All of these are a reshape to the shape that torch found."""
    return e.reshape(x, e.result.shape)


@aten("aten.expand.default", "aten.expand_as.default", "aten.broadcast_to.default")
def _expand(e: Emitter, x: Value, *_: Any, **__: Any) -> Value:
    return e.broadcast(x, e.result.shape)


@aten("aten.transpose.int")
def _transpose(e: Emitter, x: Value, first: int, second: int) -> Value:
    perm = list(range(rank(x)))
    first, second = first % len(perm), second % len(perm)
    perm[first], perm[second] = perm[second], perm[first]
    return e.transpose(x, tuple(perm))


@aten("aten.t.default", "aten.numpy_T.default")
def _t(e: Emitter, x: Value) -> Value:
    return e.transpose(x, tuple(reversed(range(rank(x)))))


@aten("aten.permute.default")
def _permute(e: Emitter, x: Value, axes: list[int]) -> Value:
    return e.transpose(x, tuple(a % rank(x) for a in axes))


@aten("aten.slice.Tensor")
def _slice(
    e: Emitter, x: Value, axis: int = 0, start: Any = None, stop: Any = None, step: int = 1
) -> Value:
    axis %= rank(x)
    size = tensor(x).shape[axis]
    return e.slice(x, axis, slice_bound(start, 0, size), slice_bound(stop, size, size), step)


def slice_bound(index: Any, default: Size, size: Size) -> Size:
    """A slice bound as a size within the axis."""
    if index is None:
        return default
    if isinstance(index, int) and isinstance(size, int):
        return min(index, size) if index >= 0 else max(size + index, 0)
    if isinstance(index, int):  # symbolic axis: torch writes a huge number for "to the end"
        return size if index > 2**31 else (size + index if index < 0 else index)
    if isinstance(index, Dim):  # -S counts from the end
        return size + index if evaluate(index, dict.fromkeys(index.symbols(), 1)) < 0 else index
    raise unsupported(f"slice bound {index!r} depends on data.")


@aten("aten.select.int")
def _select(e: Emitter, x: Value, axis: int, index: int) -> Value:
    axis %= rank(x)
    start = slice_bound(index, 0, tensor(x).shape[axis])
    return e.reshape(e.slice(x, axis, start, start + 1), e.result.shape)


@aten("aten.split.Tensor", "aten.split_with_sizes.default", "aten.chunk.default")
def _split(e: Emitter, x: Value, parts: Any, axis: int = 0) -> tuple[Value, ...]:
    """Slices; the sizes of `chunk` and of an even `split` come from torch's result types."""
    axis %= rank(x)
    pieces: list[Value] = []
    start: Size = 0
    for piece in e.out_shapes:
        stop = start + piece[axis]
        pieces.append(e.slice(x, axis, start, stop))
        start = stop
    return tuple(pieces)


@aten("aten.unbind.int")
def _unbind(e: Emitter, x: Value, axis: int = 0) -> tuple[Value, ...]:
    axis %= rank(x)
    return tuple(
        e.reshape(e.slice(x, axis, i, i + 1), shape) for i, shape in enumerate(e.out_shapes)
    )


@aten("aten.cat.default", "aten.concat.default", "aten.concatenate.default")
def _cat(e: Emitter, pieces: list[Value], axis: int = 0) -> Value:
    if len(pieces) > 1:  # torch lets an empty vector stand for an empty tensor of any rank
        pieces = [p for p in pieces if tensor(p).shape != (0,)] or pieces[:1]
    if len(pieces) == 1:
        return pieces[0]
    dtype = e.result.dtype
    return e.op("core.concat", *(e.cast(p, dtype) for p in pieces), axis=axis % rank(pieces[0]))


@aten("aten.stack.default")
def _stack(e: Emitter, pieces: list[Value], axis: int = 0) -> Value:
    axis %= rank(pieces[0]) + 1
    shape = tensor(pieces[0]).shape
    wide = (*shape[:axis], 1, *shape[axis:])
    return e.op("core.concat", *(e.reshape(p, wide) for p in pieces), axis=axis)


@aten("aten.repeat_interleave.self_int")
def _repeat_interleave(
    e: Emitter, x: Value, repeats: int, dim: int | None = None, **_: Any
) -> Value:
    if dim is None:
        x, dim = e.reshape(x, (tensor(x).elements,)), 0
    axis, shape = dim % rank(x), tensor(x).shape
    wide = e.reshape(x, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    full = e.broadcast(wide, (*shape[: axis + 1], repeats, *shape[axis + 1 :]))
    return e.reshape(full, e.result.shape)


@aten("aten.repeat.default")
def _repeat(e: Emitter, x: Value, repeats: list[int]) -> Value:
    """Tile: every axis `n` repeated `r` times is `[r, n]` broadcast from `[1, n]`."""
    shape = (*(1 for _ in range(len(repeats) - rank(x))), *tensor(x).shape)
    wide = tuple(s for size in shape for s in (1, size))
    full = tuple(s for r, size in zip(repeats, shape, strict=True) for s in (r, size))
    return e.reshape(e.broadcast(e.reshape(x, wide), full), e.result.shape)


@aten("aten.arange.default", "aten.arange.start", "aten.arange.start_step")
def _arange(e: Emitter, *bounds: Any, **_: Any) -> Value:
    start, step = (bounds[0] if len(bounds) > 1 else 0), (bounds[2] if len(bounds) > 2 else 1)
    dtype = e.result.dtype
    if isinstance(start, Dim) or isinstance(step, Dim):
        raise unsupported("arange with a symbolic start or step is not supported.")
    out = e.op("core.iota", size=e.result.shape[0], dtype=dtype)
    if step != 1:
        out = e.op("core.mul", out, e.scalar(step, dtype))
    return out if start == 0 else e.op("core.add", out, e.scalar(start, dtype))
