"""ONNX operators that act on each element alone.

Where all inputs are known they are computed; where all are one repeated number, that number is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from inferc.errors import CompileError
from inferc.frontend.onnx_fold import COMPARISONS, fold, is_single, listed, number_of
from inferc.frontend.onnx_table import (
    MICROSOFT,
    Node,
    OnnxEmitter,
    dtype_of_item,
    onnx_op,
    shape_of,
)
from inferc.frontend.onnx_values import Filled, Item, Known, Scalar, Unsaid, np_dtype, settled
from inferc.frontend.onnx_weights import dtype_of
from inferc.ir.card import TypeMismatch
from inferc.ir.core import Value
from inferc.ir.dims import Dim, Size
from inferc.ir.ops._shapes import broadcast

_UNARY = {
    "Abs": "abs", "Neg": "neg", "Exp": "exp", "Log": "log", "Sqrt": "sqrt", "Tanh": "tanh",
    "Reciprocal": "reciprocal", "Sigmoid": "sigmoid", "Cos": "cos", "Sin": "sin", "Erf": "erf",
    "Floor": "floor", "Relu": "relu", "Not": "logical_not",
}  # fmt: skip
_BINARY = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Pow": "pow", "And": "logical_and",
    "Or": "logical_or", "Max": "maximum", "Min": "minimum", "Less": "lt", "LessOrEqual": "le",
    "Greater": "gt", "GreaterOrEqual": "ge", "Equal": "eq",
}  # fmt: skip


def _unary(core: str) -> Callable[[OnnxEmitter, Node], Item]:
    def build(e: OnnxEmitter, n: Node) -> Item:
        x = n.input(0)
        folded = fold(e, core, dtype_of_item(x), x)
        return folded if folded is not None else e.emit(core, e.value(x))

    return build


def binary(e: OnnxEmitter, core: str, a: Item, b: Item) -> Item:
    """An element-wise op of two items, computed where they are known."""
    dtype = "bool" if core in COMPARISONS else dtype_of_item(a)
    folded = fold(e, core, dtype, a, b)
    if folded is not None:
        return folded
    reason = _unsaid(a) or _unsaid(b)
    if reason is not None:
        return Unsaid(broadcast(core, shape_of(a), shape_of(b)), dtype, reason)
    return _whole_sum(e, core, a, b) or e.emit(core, e.value(a), e.value(b))


def _unsaid(item: Item) -> str | None:
    """Why the values of an item cannot be data of the graph; None if they can."""
    if isinstance(item, Unsaid):
        return item.reason
    if isinstance(item, Filled) and isinstance(item.value, Dim):
        return f"the size {item.value} is used as data."
    if isinstance(item, Known) and not item.is_numeric:
        return f"the sizes ({', '.join(map(str, item.elements()))}) are used as data."
    return None


def _whole_sum(e: OnnxEmitter, core: str, a: Item, b: Item) -> Item | None:
    """(x + c) + d and (x + c) - d of integers as one sum: positions keep their plain form."""
    if core not in ("add", "sub") or not dtype_of_item(a).startswith("i"):
        return None
    if core == "add" and _is_number(a):
        a, b = b, a
    if not isinstance(a, Value) or not _is_number(b):
        return None
    total = int(number_of(b)) * (1 if core == "add" else -1)  # type: ignore[arg-type]
    op = a.producer
    inner = op.operands[1].producer if op is not None and op.name == "core.add" else None
    if op is not None and inner is not None and inner.name == "core.constant":
        values = inner.attrs["values"]
        if isinstance(values, tuple) and len(values) == 1:
            a, total = op.operands[0], total + int(values[0])  # type: ignore[arg-type]
    shape = broadcast(core, shape_of(a), shape_of(b))
    a = e.broadcast(a, shape)
    dtype = dtype_of_item(a)
    return a if total == 0 else e.emit("add", a, e.scalar(total, dtype))


def _is_number(item: Item) -> bool:
    return (isinstance(item, Filled) or is_single(item)) and not isinstance(number_of(item), Dim)


def _binary(core: str) -> Callable[[OnnxEmitter, Node], Item]:
    def build(e: OnnxEmitter, n: Node) -> Item:
        """Max and Min take any number of inputs."""
        out = n.input(0)
        for i in range(1, len(n.inputs)):
            b = n.input(i)
            if core == "pow":
                out = _power(e, out, b)
            else:
                out = binary(e, core, out, b)
        return out

    return build


def _power(e: OnnxEmitter, x: Item, exponent: Item) -> Item:
    """The exponent may be of another type; squares and roots have their own names."""
    if not isinstance(x, Value):
        return binary(e, "pow", x, exponent)
    if _is_number(exponent):
        number = number_of(exponent)
        name = {2.0: "square", 0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}.get(float(number))  # type: ignore[arg-type]
        if name:
            return e.emit(name, x)
        if number == 3:
            return e.emit("mul", e.emit("square", x), x)
        if number == 1:
            return x
    return e.emit("pow", x, e.value(exponent, dtype_of_item(x)))


for _onnx, _core in _UNARY.items():
    onnx_op(_onnx)(_unary(_core))
for _onnx, _core in _BINARY.items():
    onnx_op(_onnx)(_binary(_core))


@onnx_op("Mod")
def _mod(e: OnnxEmitter, n: Node) -> Item:
    """Of known numbers only."""
    a, b = n.input(0), n.input(1)
    if not all(isinstance(i, Known) and i.is_numeric for i in (a, b)):
        raise CompileError("a remainder of data or of symbolic sizes is not supported.")
    array = np.fmod(a.array, b.array) if n.attr("fmod", 0) else np.mod(a.array, b.array)  # type: ignore[union-attr]
    return settled(array, dtype_of_item(a))


@onnx_op("Identity", "Dropout")
def _identity(e: OnnxEmitter, n: Node) -> Item:
    if n.wants(1):
        raise CompileError("the mask of a dropout is used.")
    return n.input(0)


@onnx_op("IsNaN")
def _is_nan(e: OnnxEmitter, n: Node) -> Item:
    x = e.value(n.input(0))
    return e.emit("ne", x, x)


@onnx_op("Cast", "CastLike")
def _cast(e: OnnxEmitter, n: Node) -> Item:
    """Between float types nothing happens: activations are float32 throughout."""
    if n.kind == "CastLike":
        target = dtype_of_item(n.input(1))
    else:
        target = dtype_of(n.attr("to"), "The result of a cast")
    return cast_item(e, n.input(0), target)


def cast_item(e: OnnxEmitter, x: Item, dtype: str) -> Item:
    """The item in another dtype; floats are f32."""
    dtype = "f32" if dtype.startswith(("f", "bf")) else dtype
    if isinstance(x, Value):
        return e.cast(x, dtype)
    if isinstance(x, Filled):
        return Filled(_cast_number(x.value, dtype), x.shape, dtype)
    if isinstance(x, Unsaid):
        return replace(x, dtype=dtype)
    if not isinstance(x, Known):
        raise CompileError(f"a cast of the stored {x.dtype} tensor is not supported.")
    if not x.is_numeric:
        return Known(x.array, dtype)
    return Known(x.array.astype(np_dtype(dtype)), dtype)


def _cast_number(value: Scalar, dtype: str) -> Scalar:
    if isinstance(value, Dim):
        return value
    return np_dtype(dtype).type(value).item()  # type: ignore[no-any-return]


@onnx_op("Where")
def _where(e: OnnxEmitter, n: Node) -> Item:
    condition, a, b = (n.input(i) for i in range(3))
    if isinstance(condition, Filled) or is_single(condition):
        chosen = a if number_of(condition) else b
        shape = broadcast("where", *(shape_of(i) for i in (condition, a, b)))
        return expand(e, chosen, shape)
    if isinstance(condition, Known):
        a, b = listed(a), listed(b)
    if all(isinstance(i, Known) for i in (condition, a, b)):
        chosen_array = np.where(condition.array, a.array, b.array)  # type: ignore[union-attr]
        return settled(chosen_array, dtype_of_item(a))
    dtype = dtype_of_item(a)
    return e.emit("where", e.value(condition), e.value(a, dtype), e.value(b, dtype))


def expand(e: OnnxEmitter, x: Item, shape: tuple[Size, ...]) -> Item:
    """Broadcast to a shape that the item's own is known to fit."""
    if shape_of(x) == shape:
        return x
    if isinstance(x, Filled) or is_single(x):
        return Filled(number_of(x), shape, dtype_of_item(x))
    if isinstance(x, Unsaid):
        return replace(x, shape=shape)
    if isinstance(x, Known) and all(isinstance(s, int) for s in shape):
        return Known(np.broadcast_to(x.array, shape), x.dtype)  # type: ignore[arg-type]
    try:
        return e.broadcast(e.value(x), shape)
    except TypeMismatch as error:
        raise CompileError(f"{error}.") from error


@onnx_op("Clip")
def _clip(e: OnnxEmitter, n: Node) -> Item:
    x = n.input(0)
    for core, index, name in (("maximum", 1, "min"), ("minimum", 2, "max")):
        limit = n.optional(index)
        if limit is None and name in n.attrs:
            limit = Known(np.array(n.attr(name), np.float64), "f32")
        if limit is not None:
            x = binary(e, core, x, limit)
    return x


@onnx_op("Gelu")
def _gelu(e: OnnxEmitter, n: Node) -> Item:
    return e.emit("gelu", e.value(n.input(0)), approximate=n.attr("approximate", "none"))


@onnx_op("Gelu", domain=MICROSOFT)
def _microsoft_gelu(e: OnnxEmitter, n: Node) -> Item:
    return e.emit("gelu", e.value(n.input(0)), approximate="none")


@onnx_op("FastGelu", "BiasGelu", domain=MICROSOFT)
def _bias_gelu(e: OnnxEmitter, n: Node) -> Item:
    x, bias = n.input(0), n.optional(1)
    if bias is not None:
        x = binary(e, "add", x, bias)
    tanh = n.kind == "FastGelu"
    return e.emit("gelu", e.value(x), approximate="tanh" if tanh else "none")


@onnx_op("QuickGelu", domain=MICROSOFT)
def _quick_gelu(e: OnnxEmitter, n: Node) -> Item:
    return _sigmoid_unit(e, e.value(n.input(0)), n.attr("alpha", 1.702))


@onnx_op("Swish")
def _swish(e: OnnxEmitter, n: Node) -> Item:
    return _sigmoid_unit(e, e.value(n.input(0)), n.attr("alpha", 1.0))


def _sigmoid_unit(e: OnnxEmitter, x: Value, alpha: float) -> Value:
    if alpha == 1.0:
        return e.emit("silu", x)
    return e.emit("mul", x, e.emit("sigmoid", e.emit("mul", x, e.scalar(alpha, "f32"))))


@onnx_op("Softplus")
def _softplus(e: OnnxEmitter, n: Node) -> Item:
    """log(1 + exp(x)), by max(x, 0) + log(1 + exp(-|x|)), which never overflows."""
    x = e.value(n.input(0))
    small = e.emit("exp", e.emit("neg", e.emit("abs", x)))
    return e.emit(
        "add", e.emit("relu", x), e.emit("log", e.emit("add", small, e.scalar(1.0, "f32")))
    )
