"""Element-wise ops: numpy broadcasting, one dtype for all operands."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from inferc.ir.card import Attr, Attrs, BadSample, Card, Sample, TypeMismatch, register
from inferc.ir.dims import Size
from inferc.ir.ops._shapes import broadcast, same_dtype, tensor_of
from inferc.ir.types import DTYPES, TensorType, Type, numpy_dtype

_ERF = np.vectorize(math.erf, otypes=[np.float64])


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)), without overflow."""
    small = np.exp(-np.abs(x))  # never overflows
    y: np.ndarray = np.where(x >= 0, 1 / (1 + small), small / (1 + small))
    return y


def gelu(x: np.ndarray, approximate: str = "none") -> np.ndarray:
    """GELU, exact or by tanh (Hendrycks and Gimpel, arXiv 1606.08415)."""
    if approximate == "tanh":
        squash = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))
    else:
        squash = _ERF(x / math.sqrt(2)).astype(x.dtype)
    y: np.ndarray = 0.5 * x * (1 + squash)
    return y


def silu(x: np.ndarray) -> np.ndarray:
    """The product of x and its sigmoid."""
    y: np.ndarray = x * sigmoid(x)
    return y


# name -> (function, flops an element, only for floats)
_UNARY: dict[str, tuple[Callable[..., np.ndarray], int]] = {
    "neg": (np.negative, 1),
    "abs": (np.abs, 1),
    "exp": (np.exp, 8),
    "log": (np.log, 8),
    "sqrt": (np.sqrt, 4),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 4),
    "reciprocal": (lambda x: 1 / x, 4),
    "tanh": (np.tanh, 12),
    "sigmoid": (sigmoid, 10),
    "cos": (np.cos, 12),
    "sin": (np.sin, 12),
    "erf": (lambda x: _ERF(x).astype(x.dtype), 12),
    "relu": (lambda x: np.maximum(x, x.dtype.type(0)), 1),
    "silu": (silu, 11),
    "softplus": (lambda x: np.logaddexp(x, x.dtype.type(0)), 18),
    "square": (np.square, 1),
    "floor": (np.floor, 1),
    "logical_not": (np.logical_not, 1),
}
_BINARY: dict[str, tuple[Callable[..., np.ndarray], int]] = {
    "add": (np.add, 1),
    "sub": (np.subtract, 1),
    "mul": (np.multiply, 1),
    "div": (np.divide, 4),
    "pow": (np.power, 16),
    "maximum": (np.maximum, 1),
    "minimum": (np.minimum, 1),
    "logical_and": (np.logical_and, 1),
    "logical_or": (np.logical_or, 1),
}
_COMPARE: dict[str, Callable[..., np.ndarray]] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}
UNARY = frozenset(f"core.{n}" for n in _UNARY) | {"core.gelu"}
BINARY = frozenset(f"core.{n}" for n in _BINARY)
COMPARE = frozenset(f"core.{n}" for n in _COMPARE)
ELEMENTWISE = UNARY | BINARY | COMPARE | {"core.where", "core.cast"}


def _count(per_element: int) -> Callable[[Sequence[Type], Attrs], Size]:
    def flops(types: Sequence[Type], attrs: Attrs) -> Size:
        shapes = [t.shape for t in types if isinstance(t, TensorType)]
        return TensorType(broadcast("flops", *shapes), "f32").elements * per_element

    return flops


def _infer(op: str, result: str | None = None) -> Callable[..., tuple[Type, ...]]:
    def infer(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
        tensors = [tensor_of(op, f"operand {i}", t) for i, t in enumerate(types)]
        dtype = same_dtype(op, tensors)
        if tensors[0].is_block:
            raise TypeMismatch(f"{op}: {tensors[0]} is block-quantised; cast it first")
        return (TensorType(broadcast(op, *(t.shape for t in tensors)), result or dtype),)

    return infer


def _samples(operands: int) -> tuple[Sample, ...]:
    one = TensorType((3, 5), "f32")
    if operands == 1:
        return (Sample((one,)),)
    return (
        Sample((one, one)),
        Sample((one, TensorType((5,), "f32"))),
        Sample((TensorType((3, 1), "f32"), one)),
    )


_BAD_PAIRS = (
    BadSample((TensorType((3, 5), "f32"), TensorType((3,), "f32")), {}, "cannot broadcast"),
    BadSample((TensorType((3, 5), "f32"), TensorType((5,), "i32")), {}, "cast first"),
    BadSample((TensorType((3, 32), "q8_0"), TensorType((3, 32), "q8_0")), {}, "block-quantised"),
)
for _name, (_function, _flops) in _UNARY.items():
    _samples_of = _samples(1)
    if _name == "logical_not":
        _samples_of = (Sample((TensorType((3, 5), "bool"),)),)
    register(
        Card(
            f"core.{_name}", f"Element-wise {_name}.", ("x: [..]",), _infer(f"core.{_name}"),
            _function, flops=_count(_flops), samples=_samples_of,
        )
    )  # fmt: skip
for _name, (_function, _flops) in _BINARY.items():
    _pair = _samples(2)
    if _name.startswith("logical"):
        _pair = (Sample((TensorType((3, 5), "bool"), TensorType((5,), "bool"))),)
    register(
        Card(
            f"core.{_name}", f"Element-wise {_name} with broadcasting.", ("a: [..]", "b: [..]"),
            _infer(f"core.{_name}"), _function, flops=_count(_flops), samples=_pair,
            refused=_BAD_PAIRS,
        )
    )  # fmt: skip
for _name, _function in _COMPARE.items():
    register(
        Card(
            f"core.{_name}", f"Element-wise comparison {_name}.", ("a: [..]", "b: [..]"),
            _infer(f"core.{_name}", "bool"), _function, flops=_count(1), samples=_samples(2),
            refused=_BAD_PAIRS,
        )
    )  # fmt: skip

register(
    Card(
        "core.gelu",
        "GELU, exact (erf) or by the tanh approximation.",
        ("x: [..]",),
        _infer("core.gelu"),
        gelu,
        attrs=(Attr("approximate", (str,), False, "none", ("none", "tanh")),),
        flops=_count(16),
        samples=(
            Sample(_samples(1)[0].operands),
            Sample(_samples(1)[0].operands, {"approximate": "tanh"}),
        ),
    )
)


def _infer_where(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
    condition, a, b = (tensor_of("core.where", n, t) for n, t in zip("cab", types, strict=True))
    if condition.dtype != "bool":
        raise TypeMismatch(f"core.where: the condition must be bool, found {condition}")
    dtype = same_dtype("core.where", (a, b))
    return (TensorType(broadcast("core.where", condition.shape, a.shape, b.shape), dtype),)


register(
    Card(
        "core.where",
        "a where the condition holds, else b.",
        ("condition: [..]", "a: [..]", "b: [..]"),
        _infer_where,
        np.where,
        flops=_count(1),
        samples=(
            Sample(
                (TensorType((3, 5), "bool"), TensorType((3, 5), "f32"), TensorType((5,), "f32"))
            ),
        ),
        refused=(BadSample((TensorType((3,), "f32"),) * 3, {}, "condition must be bool"),),
    )
)


def _infer_cast(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
    return (tensor_of("core.cast", "x", types[0]).with_dtype(str(attrs["dtype"])),)


def _cast(x: np.ndarray, dtype: str) -> np.ndarray:
    # The interpreter may compute in float64: a cast to f32 then keeps the wider type.
    if dtype == "f32" and x.dtype == np.float64:
        return x
    return x.astype(numpy_dtype(dtype))


register(
    Card(
        "core.cast",
        "Convert to another dtype; a block-quantised operand is dequantised.",
        ("x: [..]",),
        _infer_cast,
        _cast,
        attrs=(Attr("dtype", (str,), choices=DTYPES),),
        flops=_count(1),
        samples=(Sample((TensorType((3, 5), "f32"),), {"dtype": "i32"}),),
    )
)
