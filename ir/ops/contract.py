"""Contractions and reductions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inferc.ir.card import Attr, Attrs, BadSample, Card, Sample, TypeMismatch, register
from inferc.ir.dims import Size, product
from inferc.ir.ops._shapes import Dims, axes_of, axis_of, broadcast, same_dtype, tensor_of
from inferc.ir.types import TensorType, Type


def _infer_linear(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
    dims = Dims("core.linear")
    x = dims.match("x", types[0], "..", "K")
    dims.match("w", types[1], "N", "K")
    if len(types) == 3:
        dims.match("bias", types[2], "N")
    if x.dtype not in ("f32", "f64"):
        raise TypeMismatch(f"core.linear: x must be f32, found {x}")
    return (TensorType((*x.shape[:-1], dims["N"]), x.dtype),)


def _linear(x: np.ndarray, w: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    rows = x.reshape(-1, x.shape[-1])  # one matrix product, not one a batch
    y: np.ndarray = (rows @ w.astype(x.dtype, copy=False).T).reshape(*x.shape[:-1], w.shape[0])
    return y if bias is None else y + bias.astype(x.dtype)


def _linear_flops(types: Sequence[Type], attrs: Attrs) -> Size:
    x, w = types[:2]
    assert isinstance(x, TensorType) and isinstance(w, TensorType)
    return x.elements * w.shape[0] * 2


register(
    Card(
        "core.linear",
        "x times the transpose of w, plus a bias. w may be of any stored type.",
        ("x: [.., K]", "w: [N, K]", "bias?: [N]"),
        _infer_linear,
        _linear,
        flops=_linear_flops,
        samples=(
            Sample((TensorType((2, 3, 8), "f32"), TensorType((5, 8), "f32"))),
            Sample((TensorType((3, 8), "f32"), TensorType((5, 8), "f32"), TensorType((5,), "f32"))),
            Sample((TensorType((3, 32), "f32"), TensorType((5, 32), "q4_1"))),
            Sample((TensorType((3, 64), "f32"), TensorType((5, 64), "u4b_g32"))),
            Sample((TensorType((3, 8), "f32"), TensorType((5, 8), "f8e4m3"))),
            Sample((TensorType((3, 8), "f32"), TensorType((5, 8), "i8"))),
        ),
        refused=(
            BadSample((TensorType((3, 8), "f32"), TensorType((5, 7), "f32")), {}, "dim K is 8"),
            BadSample((TensorType((3, 8), "i32"), TensorType((5, 8), "f32")), {}, "must be f32"),
        ),
    )
)


def _infer_head_linear(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
    dims = Dims("nn.head_linear")
    x = dims.match("x", types[0], "..", "H", "K")
    dims.match("w", types[1], "H", *(("K", "N") if attrs["turned"] else ("N", "K")))
    if x.dtype not in ("f32", "f64"):
        raise TypeMismatch(f"nn.head_linear: x must be f32, found {x}")
    return (TensorType((*x.shape[:-1], dims["N"]), x.dtype),)


def _head_linear(x: np.ndarray, w: np.ndarray, *, turned: bool = False) -> np.ndarray:
    path = "...hk,hkn->...hn" if turned else "...hk,hnk->...hn"
    y: np.ndarray = np.einsum(path, x, w.astype(x.dtype, copy=False), optimize=True)
    return y


def _head_linear_flops(types: Sequence[Type], attrs: Attrs) -> Size:
    x, w = types
    assert isinstance(x, TensorType) and isinstance(w, TensorType)
    return x.elements * w.shape[2 if attrs["turned"] else 1] * 2


register(
    Card(
        "nn.head_linear",
        "Every head of x times the transpose of its own matrix; turned: times [H, K, N] as it is. "
        "w may be of any stored type.",
        ("x: [.., H, K]", "w: [H, N, K]"),
        _infer_head_linear,
        _head_linear,
        attrs=(Attr("turned", (bool,), False, False),),
        flops=_head_linear_flops,
        samples=(
            Sample((TensorType((2, 3, 4, 8), "f32"), TensorType((4, 5, 8), "f32"))),
            Sample((TensorType((3, 2, 32), "f32"), TensorType((2, 5, 32), "q4_1"))),
            Sample(
                (TensorType((3, 2, 5), "f32"), TensorType((2, 5, 32), "q4_1")), {"turned": True}
            ),
        ),
        refused=(
            BadSample((TensorType((3, 4, 8), "f32"), TensorType((2, 5, 8), "f32")), {}, "dim H"),
            BadSample((TensorType((3, 2, 8), "f32"), TensorType((2, 5, 7), "f32")), {}, "dim K"),
        ),
    )
)


def _infer_matmul(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
    a, b = tensor_of("core.matmul", "a", types[0]), tensor_of("core.matmul", "b", types[1])
    if a.rank < 2 or b.rank < 2:
        raise TypeMismatch(f"core.matmul: needs two matrices, found {a} and {b}")
    dims = Dims("core.matmul")
    dims.bind("a", "K", a.shape[-1])
    dims.bind("b", "K", b.shape[-2])
    lead = broadcast("core.matmul", a.shape[:-2], b.shape[:-2])
    return (TensorType((*lead, a.shape[-2], b.shape[-1]), same_dtype("core.matmul", (a, b))),)


def _matmul_flops(types: Sequence[Type], attrs: Attrs) -> Size:
    a, b = types
    assert isinstance(a, TensorType) and isinstance(b, TensorType)
    lead = broadcast("core.matmul", a.shape[:-2], b.shape[:-2])
    return product(lead) * a.shape[-2] * a.shape[-1] * b.shape[-1] * 2


register(
    Card(
        "core.matmul",
        "Batched matrix product.",
        ("a: [.., M, K]", "b: [.., K, N]"),
        _infer_matmul,
        np.matmul,
        flops=_matmul_flops,
        samples=(
            Sample((TensorType((2, 3, 4), "f32"), TensorType((2, 4, 5), "f32"))),
            Sample((TensorType((2, 1, 4, 1), "f32"), TensorType((1, 3), "f32"))),
        ),
        refused=(
            BadSample((TensorType((3, 4), "f32"), TensorType((5, 3), "f32")), {}, "dim K is 4"),
            BadSample((TensorType((4,), "f32"), TensorType((4, 3), "f32")), {}, "two matrices"),
        ),
    )
)


def _infer_reduce(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
    x = tensor_of("reduction", "x", types[0])
    axes = axes_of("reduction", attrs, x.rank)
    keep = attrs["keepdim"]
    shape: list[Size] = []
    for i, size in enumerate(x.shape):
        if i not in axes:
            shape.append(size)
        elif keep:
            shape.append(1)
    return (x.with_shape(tuple(shape)),)


_REDUCE_ATTRS = (Attr("axes", (tuple,)), Attr("keepdim", (bool,), False, True))
_REDUCE_SAMPLES = (
    Sample((TensorType((3, 5), "f32"),), {"axes": (1,)}),
    Sample((TensorType((2, 3, 5), "f32"),), {"axes": (0, -1), "keepdim": False}),
)


def _elements(types: Sequence[Type], attrs: Attrs) -> Size:
    assert isinstance(types[0], TensorType)
    return types[0].elements


for _name, _function in {"sum": np.sum, "mean": np.mean, "amax": np.max}.items():
    register(
        Card(
            f"core.{_name}",
            f"Reduction over axes: {_name}.",
            ("x: [..]",),
            _infer_reduce,
            lambda x, axes, keepdim=True, _f=_function: _f(x, axis=axes, keepdims=keepdim),
            attrs=_REDUCE_ATTRS,
            flops=_elements,
            samples=_REDUCE_SAMPLES,
            refused=(BadSample((TensorType((3, 5), "f32"),), {"axes": (2,)}, "axis 2"),),
        )
    )


def _infer_softmax(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
    x = tensor_of("core.softmax", "x", types[0])
    axis_of("core.softmax", attrs["axis"], x.rank)
    return (x,)


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    """Softmax with the maximum subtracted."""
    e = np.exp(x - x.max(axis, keepdims=True))
    y: np.ndarray = e / e.sum(axis, keepdims=True)
    return y


register(
    Card(
        "core.softmax",
        "Softmax along an axis.",
        ("x: [..]",),
        _infer_softmax,
        softmax,
        attrs=(Attr("axis", (int,)),),
        flops=lambda types, attrs: _elements(types, attrs) * 12,
        samples=(Sample((TensorType((3, 5), "f32"),), {"axis": -1}),),
        refused=(BadSample((TensorType((3, 5), "f32"),), {"axis": 2}, "axis 2"),),
    )
)
