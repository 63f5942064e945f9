"""ATen ops that combine elements: linear layers, lookups, norms, reductions, softmax."""

from __future__ import annotations

from typing import Any

from inferc.frontend.aten_table import Emitter, Scalar, aten, rank, tensor, unsupported
from inferc.ir.core import Value


@aten("aten.linear.default")
def _linear(e: Emitter, x: Value, weight: Value, bias: Value | None = None) -> Value:
    return e.op("core.linear", x, weight, *([] if bias is None else [bias]))


@aten("aten.addmm.default")
def _addmm(
    e: Emitter, bias: Value, x: Value, weight: Value, *, beta: Scalar = 1, alpha: Scalar = 1
) -> Value:
    """`bias + x @ weight`: a linear layer whose weight is stored transposed."""
    if beta != 1 or alpha != 1 or rank(bias) != 1:
        raise unsupported("addmm with beta, alpha or a matrix as bias is not supported.")
    return e.op("core.linear", x, e.transpose(weight, (1, 0)), bias)


@aten("aten.matmul.default", "aten.mm.default", "aten.bmm.default")
def _matmul(e: Emitter, a: Value, b: Value) -> Value:
    return e.op("core.matmul", a, b)


@aten("aten.baddbmm.default")
def _baddbmm(
    e: Emitter, x: Value, a: Value, b: Value, *, beta: Scalar = 1, alpha: Scalar = 1
) -> Value:
    product, dtype = e.op("core.matmul", a, b), e.result.dtype
    if alpha != 1:
        product = e.op("core.mul", product, e.scalar(alpha, dtype))
    if beta != 1:
        x = e.op("core.mul", x, e.scalar(beta, dtype))
    return e.op("core.add", x, product)


@aten("aten.embedding.default")
def _embedding(e: Emitter, weight: Value, ids: Value, *_: Any) -> Value:
    return e.op("core.embedding", weight, ids)


@aten("aten.layer_norm.default")
def _layer_norm(
    e: Emitter,
    x: Value,
    shape: list[int],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Value:
    if len(shape) != 1:
        raise unsupported(f"layer norm over {len(shape)} axes is not supported.")
    if weight is None and bias is not None:
        raise unsupported("layer norm with a bias but no weight is not supported.")
    operands = [v for v in (weight, bias) if v is not None]
    return e.op("nn.layer_norm", x, *operands, eps=eps)


@aten("aten.rms_norm.default")
def _rms_norm(
    e: Emitter, x: Value, shape: list[int], weight: Value | None = None, eps: float | None = None
) -> Value:
    if len(shape) != 1 or eps is None:
        raise unsupported("rms norm over several axes or without epsilon is not supported.")
    return e.op("nn.rms_norm", x, *([] if weight is None else [weight]), eps=eps)


def _reduction(name: str) -> Any:
    def build(e: Emitter, x: Value, axes: Any = None, keepdim: bool = False, **_: Any) -> Value:
        wanted = [axes] if isinstance(axes, int) else list(axes or range(rank(x)))
        over = tuple(a % rank(x) for a in wanted)
        return e.op(f"core.{name}", e.cast(x, e.result.dtype), axes=over, keepdim=bool(keepdim))

    return build


aten("aten.mean.dim", "aten.mean.default")(_reduction("mean"))
aten("aten.sum.dim_IntList", "aten.sum.default")(_reduction("sum"))
aten("aten.amax.default")(_reduction("amax"))


@aten("aten.linalg_vector_norm.default")
def _vector_norm(
    e: Emitter, x: Value, order: Scalar = 2, axes: Any = None, keepdim: bool = False, **_: Any
) -> Value:
    """The sum of absolute values, or the square root of the sum of squares."""
    if order not in (1, 2):
        raise unsupported(f"a norm of order {order} is not supported.")
    name = "core.abs" if order == 1 else "core.square"
    total = _reduction("sum")(e, e.op(name, x), axes, keepdim)
    return total if order == 1 else e.op("core.sqrt", total)


@aten("aten.std.dim", "aten.std.correction")
def _std(
    e: Emitter,
    x: Value,
    axes: Any = None,
    unbiased: Any = None,
    keepdim: bool = False,
    *,
    correction: Scalar | None = None,
) -> Value:
    """Standard deviation, without the correction for samples."""
    if correction not in (None, 0) or (correction is None and unbiased is not False):
        raise unsupported("a standard deviation with the correction for samples is not supported.")
    over = tuple(a % rank(x) for a in (axes or range(rank(x))))
    centred = e.op("core.sub", x, e.op("core.mean", x, axes=over, keepdim=True))
    squared = e.op("core.square", centred)
    return e.op("core.sqrt", e.op("core.mean", squared, axes=over, keepdim=keepdim))


@aten("aten.softmax.int", "aten._softmax.default")
def _softmax(e: Emitter, x: Value, axis: int, *_: Any, **__: Any) -> Value:
    return e.op("core.softmax", e.cast(x, e.result.dtype), axis=axis % rank(x))


@aten("aten.index_select.default")
def _index_select(e: Emitter, x: Value, axis: int, indices: Value) -> Value:
    if axis % rank(x) != 0 or rank(x) != 2:
        raise unsupported("selecting anything but rows of a matrix is not supported.")
    return e.op("core.embedding", x, indices)


def _places(e: Emitter, x: Value, axis: int, indices: Value) -> Value:
    """Elements of an axis at places known beforehand."""
    op = indices.producer
    values = op.attrs["values"] if op is not None and op.name == "core.constant" else None
    if not isinstance(values, tuple) or rank(indices) != 1:
        raise unsupported("indexing by anything but one integer tensor is not supported.")
    size = tensor(x).shape[axis]
    starts = [v if v >= 0 else size + v for v in values]  # type: ignore[operator]
    pieces = [e.slice(x, axis, s, s + 1) for s in starts]
    return pieces[0] if len(pieces) == 1 else e.op("core.concat", *pieces, axis=axis)


@aten("aten.index.Tensor")
def _index(e: Emitter, x: Value, indices: list[Value | None]) -> Value:
    """Selection by one index tensor: rows of a matrix, or places known beforehand."""
    given = [(axis, v) for axis, v in enumerate(indices) if v is not None]
    if len(given) != 1 or not tensor(given[0][1]).dtype.startswith("i"):
        raise unsupported("indexing by anything but one integer tensor is not supported.")
    if given[0][0] > 0:
        return _places(e, x, *given[0])
    if rank(x) == 2:
        return e.op("core.embedding", x, indices[0])
    raise unsupported("indexing a tensor that is not a matrix is not supported.")
