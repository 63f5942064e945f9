"""ATen ops that select within the last axis, and experts: what routers are made of."""

from __future__ import annotations

from inferc.frontend.aten_table import Emitter, Scalar, aten, rank, tensor, unsupported
from inferc.ir.core import Value


def _last(x: Value, axis: int, what: str) -> None:
    if axis % rank(x) != rank(x) - 1:
        raise unsupported(f"{what} along an axis that is not the last is not supported.")


@aten("aten.topk.default")
def _topk(
    e: Emitter, x: Value, k: int, axis: int = -1, largest: bool = True, sort: bool = True
) -> tuple[Value, ...]:
    """Always sorted: the order of a router's choices changes nothing but rounding."""
    _last(x, axis, "topk")
    if not largest:
        raise unsupported("topk of the smallest elements is not supported.")
    return e.ops("core.topk", x, k=k)


@aten("aten.max.dim")
def _max(e: Emitter, x: Value, axis: int, keepdim: bool = False) -> tuple[Value, ...]:
    """The largest element and its place: topk of one."""
    _last(x, axis, "max")
    results = e.ops("core.topk", x, k=1)
    if keepdim:
        return results
    return tuple(e.reshape(r, tensor(x).shape[:-1]) for r in results)


@aten("aten.gather.default")
def _gather(e: Emitter, x: Value, axis: int, indices: Value, **_: object) -> Value:
    _last(x, axis, "gather")
    if tensor(x).shape[:-1] != tensor(indices).shape[:-1]:
        raise unsupported("gather from fewer rows than there are is not supported.")
    return e.op("core.take_along", x, indices)


@aten("aten.scatter.value", "aten.scatter.src")
def _scatter(e: Emitter, x: Value, axis: int, indices: Value, source: Value | Scalar) -> Value:
    _last(x, axis, "scatter")
    if tensor(x).shape[:-1] != tensor(indices).shape[:-1]:
        raise unsupported("scatter into fewer rows than there are is not supported.")
    shape, dtype = tensor(indices).shape, tensor(x).dtype
    if not isinstance(source, Value):
        source = e.broadcast(e.scalar(source, dtype), shape)
    if tensor(source).shape != shape:
        raise unsupported("scatter of more values than indices is not supported.")
    return e.op("core.put_along", x, indices, e.cast(source, dtype))


@aten("inferc.experts.default")
def _experts(
    e: Emitter,
    x: Value,
    indices: Value,
    weights: Value,
    matrices: list[Value],
    biases: list[Value],
    gated: bool,
    transposed: bool,
    concatenated: bool,
    activation: str,
    limit: float | None,
    alpha: float,
    offset: float,
) -> Value:
    """Matrices as `[E, out, in]`, gate and up apart, whichever way the model stores them."""
    *first, down = (e.transpose(m, (0, 2, 1)) if transposed else m for m in matrices)
    operands = [*(_halves(e, first[0], concatenated) if gated and len(first) == 1 else first), down]
    if biases:
        both, last = biases
        operands += [*(_halves(e, both, concatenated) if gated else (both,)), last]
    return e.op(
        "nn.experts", x, indices, e.cast(weights, e.result.dtype), *operands,
        activation=activation, gated=gated, biased=bool(biases), limit=limit, alpha=alpha,
        offset=offset,
    )  # fmt: skip


def _halves(e: Emitter, both: Value, concatenated: bool) -> tuple[Value, Value]:
    """Gate and up of axis 1: one after the other, or taking turns."""
    size = tensor(both).shape[1]
    assert isinstance(size, int)
    if concatenated:
        return e.slice(both, 1, 0, size // 2), e.slice(both, 1, size // 2, size)
    return e.slice(both, 1, 0, size, 2), e.slice(both, 1, 1, size, 2)
