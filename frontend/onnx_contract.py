"""ONNX operators that combine elements: matrix products, norms, reductions, softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from inferc.errors import CompileError
from inferc.frontend.aten_table import rank, tensor
from inferc.frontend.onnx_elementwise import binary
from inferc.frontend.onnx_table import (
    MICROSOFT,
    Node,
    OnnxEmitter,
    Results,
    axis_in,
    dtype_of_item,
    onnx_op,
    shape_of,
)
from inferc.frontend.onnx_values import Filled, Item, Known, Scalar, settled
from inferc.ir.core import Value
from inferc.ir.dims import Size, product


@onnx_op("MatMul")
def _matmul(e: OnnxEmitter, n: Node) -> Item:
    return matmul(e, e.value(n.input(0)), e.value(n.input(1)))


def matmul(e: OnnxEmitter, a: Value, b: Value) -> Value:
    """A product; with a weight matrix on the right it is a linear layer."""
    if rank(b) == 2 and e.is_weight(b) and rank(a) >= 2 and not e.is_weight(a):
        return e.emit("linear", a, e.transpose(b, (1, 0)))
    if rank(a) < 2 or rank(b) < 2:
        raise CompileError(f"a product of {a.type} and {b.type} is not supported.")
    return e.emit("matmul", a, b)


@onnx_op("FusedMatMul", domain=MICROSOFT)
def _fused_matmul(e: OnnxEmitter, n: Node) -> Item:
    n.only(transBatchA=0, transBatchB=0)
    a, b = e.value(n.input(0)), e.value(n.input(1))
    if n.attr("transA", 0):
        a = _swapped(e, a)
    if n.attr("transB", 0):
        b = _swapped(e, b)
    return _scaled(e, matmul(e, a, b), n.attr("alpha", 1.0))


def _swapped(e: OnnxEmitter, x: Value) -> Value:
    axes = list(range(rank(x)))
    axes[-2:] = axes[:-3:-1]
    return e.transpose(x, tuple(axes))


def _scaled(e: OnnxEmitter, x: Value, factor: float) -> Value:
    return x if factor == 1.0 else e.emit("mul", x, e.scalar(factor, "f32"))


@onnx_op("Gemm")
def _gemm(e: OnnxEmitter, n: Node) -> Item:
    a, b, c = e.value(n.input(0)), e.value(n.input(1)), n.optional(2)
    if n.attr("transA", 0):
        a = _swapped(e, a)
    if not n.attr("transB", 0):
        b = _swapped(e, b)
    out = _scaled(e, e.emit("linear", a, b), n.attr("alpha", 1.0))
    if c is None or n.attr("beta", 1.0) == 0.0:
        return out
    return e.emit("add", out, _scaled(e, e.value(c), n.attr("beta", 1.0)))


# -- norms
@onnx_op("LayerNormalization")
def _layer_norm(e: OnnxEmitter, n: Node) -> Results:
    x = e.value(n.input(0))
    _last_axis_only(n, x)
    if n.wants(1) or n.wants(2):
        raise CompileError("the mean or the deviation of a norm is used.")
    operands = [_vector(e, n.input(1))]
    bias = n.optional(2)
    if bias is not None:
        operands.append(_vector(e, bias))
    return e.op("nn.layer_norm", x, *operands, eps=n.attr("epsilon", 1e-5))


def _vector(e: OnnxEmitter, item: Item) -> Value:
    """A norm's weight as a vector over the last axis."""
    value = e.value(item)
    if any(s != 1 for s in tensor(value).shape[:-1]):
        raise CompileError(f"the weight {value.type} of a norm is not one vector.")
    return e.reshape(value, tensor(value).shape[-1:])


def _last_axis_only(n: Node, x: Value) -> None:
    if axis_in(n.attr("axis", -1), rank(x)) != rank(x) - 1:
        raise CompileError("a norm over more than the last axis is not supported.")


@onnx_op("RMSNormalization")
def _rms_normalization(e: OnnxEmitter, n: Node) -> Item:
    return rms_norm(e, n)


def rms_norm(e: OnnxEmitter, n: Node) -> Item:
    """Over the last axes, from `axis` on."""
    x = e.value(n.input(0))
    axis = axis_in(n.attr("axis", -1), rank(x))
    eps = n.attr("epsilon", 1e-5)
    weight = n.input(1)
    plain = axis == rank(x) - 1 and shape_of(weight) == tensor(x).shape[-1:]
    if plain:
        return e.op("nn.rms_norm", x, _vector(e, weight), eps=eps)
    shape = tensor(x).shape
    rows = e.reshape(x, (*shape[:axis], product(shape[axis:])))
    normed = e.reshape(e.op("nn.rms_norm", rows, eps=eps), shape)
    return binary(e, "mul", normed, weight)


@onnx_op("SimplifiedLayerNormalization")
@onnx_op("SimplifiedLayerNormalization", domain=MICROSOFT)
def _simplified(e: OnnxEmitter, n: Node) -> Item:
    if n.wants(1):
        raise CompileError("the deviation of a norm is used.")
    return rms_norm(e, n)


@onnx_op("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def _skip_norm(e: OnnxEmitter, n: Node) -> Results:
    """Norm of x + skip (+ bias); the sum is the fourth output."""
    simplified = n.kind.startswith("SkipSimplified")
    if n.wants(1) or n.wants(2):
        raise CompileError("the mean or the deviation of a norm is used.")
    total = binary(e, "add", n.input(0), n.input(1))
    bias = n.optional(3 if simplified else 4)
    if bias is not None:
        total = binary(e, "add", total, bias)
    x = e.value(total)
    eps = n.attr("epsilon", 1e-12 if not simplified else 1e-6)
    operands = [_vector(e, n.input(2))]
    beta = None if simplified else n.optional(3)
    if beta is not None:
        operands.append(_vector(e, beta))
    y = e.op("nn.rms_norm" if simplified else "nn.layer_norm", x, *operands, eps=eps)
    return (y, y, y, x)


# -- reductions
_REDUCTIONS = {"ReduceMean": "mean", "ReduceSum": "sum", "ReduceMax": "amax"}
_NUMPY: dict[str, Callable[..., Any]] = {"mean": np.mean, "sum": np.sum, "amax": np.max}


def _axes(e: OnnxEmitter, n: Node, x: Item) -> tuple[int, ...]:
    """Axes of a reduction: an input, or in older operators an attribute."""
    count = len(shape_of(x))
    given = n.optional(1)
    wanted = e.ints(given, "axes") if given is not None else list(n.attr("axes", ()))
    if not wanted and n.attr("noop_with_empty_axes", 0):
        return ()
    return tuple(axis_in(a, count) for a in wanted or range(count))


def _times(value: Scalar, count: Size) -> Scalar:
    if isinstance(count, int):
        return value * count
    whole = int(value) if isinstance(value, float) and value == int(value) else value
    if isinstance(whole, float):
        raise CompileError(f"the sum of {count} times {value} is not known.")
    return whole * count


@onnx_op(*_REDUCTIONS)
def _reduce(e: OnnxEmitter, n: Node) -> Item:
    x = n.input(0)
    axes, keep = _axes(e, n, x), bool(n.attr("keepdims", 1))
    if not axes:
        return x
    core = _REDUCTIONS[n.kind]
    if isinstance(x, Filled):
        shape = tuple(1 if i in axes else s for i, s in enumerate(x.shape) if keep or i not in axes)
        count = product(tuple(s for i, s in enumerate(x.shape) if i in axes))
        value = _times(x.value, count) if core == "sum" else x.value
        return Filled(value, shape, x.dtype)
    if isinstance(x, Known) and x.is_numeric:
        return settled(_NUMPY[core](x.array, axis=axes, keepdims=keep), x.dtype)
    return e.emit(core, e.value(x), axes=axes, keepdim=keep)


@onnx_op("ReduceProd")
def _reduce_prod(e: OnnxEmitter, n: Node) -> Item:
    """Of sizes only."""
    x = n.input(0)
    shape = () if not n.attr("keepdims", 1) else (1,) * len(shape_of(x))
    total = product(tuple(e.sizes(x, "operand")))
    array = np.empty(shape, object)
    array[...] = total
    return settled(array, dtype_of_item(x))


@onnx_op("ReduceSumSquare", "ReduceL2")
def _reduce_squares(e: OnnxEmitter, n: Node) -> Item:
    x = e.value(n.input(0))
    axes, keep = _axes(e, n, x), bool(n.attr("keepdims", 1))
    total = e.emit("sum", e.emit("square", x), axes=axes, keepdim=keep)
    return e.emit("sqrt", total) if n.kind == "ReduceL2" else total


@onnx_op("Softmax")
def _softmax(e: OnnxEmitter, n: Node) -> Item:
    x = e.value(n.input(0))
    return e.emit("softmax", x, axis=axis_in(n.attr("axis", -1), rank(x)))
