"""Selection within a row: the largest elements, elements by index, elements replaced by index."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inferc.ir.card import Attr, Attrs, BadSample, Card, Sample, TypeMismatch, register
from inferc.ir.dims import Size
from inferc.ir.ops._shapes import Dims, tensor_of
from inferc.ir.types import TensorType, Type


def _infer_topk(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
    x, k = tensor_of("core.topk", "x", types[0]), attrs["k"]
    size = x.shape[-1] if x.rank else None
    if not isinstance(size, int) or not isinstance(k, int) or not 0 < k <= size or x.is_block:
        raise TypeMismatch(f"core.topk: cannot take {k} elements of each row of {x}")
    values = x.with_shape((*x.shape[:-1], k))
    return values, values.with_dtype("i64")


def topk(x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k largest of the last axis, in descending order, and their places; ties: the first."""
    indices = np.argsort(-x, -1, kind="stable")[..., :k].astype(np.int64)
    return np.take_along_axis(x, indices, -1), indices


def _row_flops(types: Sequence[Type], attrs: Attrs) -> Size:
    assert isinstance(types[0], TensorType) and isinstance(attrs["k"], int)
    return types[0].elements * attrs["k"]


_X = TensorType((2, 3, 7), "f32")
register(
    Card(
        "core.topk",
        "The k largest elements of the last axis in descending order, and their indices (i64). Of "
        "equal ones the first comes first.",
        ("x: [.., N]",),
        _infer_topk,
        topk,
        attrs=(Attr("k", (int,)),),
        flops=_row_flops,
        samples=(
            Sample((_X,), {"k": 3}),
            Sample((TensorType((4,), "f32"),), {"k": 4}),
            Sample((TensorType((2, 5), "i64"),), {"k": 2}, {0: (1, 4, 4, 2, 1, 0, 0, 0, 0, 0)}),
        ),
        refused=(BadSample((_X,), {"k": 8}, "cannot take 8"),),
    )
)


def _infer_take(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
    dims = Dims("core.take_along")
    x = dims.match("x", types[0], "..", "N")
    indices = dims.match("indices", types[1], "..", "K")
    if indices.dtype not in ("i32", "i64") or x.is_block:
        raise TypeMismatch(f"core.take_along: indices of {x} must be integers, found {indices}")
    return (x.with_shape(indices.shape),)


_INDICES = TensorType((2, 3, 2), "i64")
_PLACES = (0, 6, 3, 3, 1, 2, 5, 4, 6, 0, 1, 3)
register(
    Card(
        "core.take_along",
        "Elements of the last axis by index, row by row.",
        ("x: [.., N]", "indices: [.., K]"),
        _infer_take,
        lambda x, indices: np.take_along_axis(x, indices, -1),
        samples=(Sample((_X, _INDICES), values={1: _PLACES}),),
        refused=(
            BadSample((_X, TensorType((2, 3, 2), "f32")), {}, "must be integers"),
            BadSample((_X, TensorType((3, 3, 2), "i64")), {}, "leading axis 0"),
        ),
    )
)


def _infer_one_order(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
    dims = Dims("core.take")
    x, indices = dims.match("x", types[0], "..", "N"), dims.match("indices", types[1], "K")
    if indices.dtype not in ("i32", "i64") or x.is_block:
        raise TypeMismatch(f"core.take: indices of {x} must be integers, found {indices}")
    return (x.with_shape((*x.shape[:-1], dims["K"])),)


register(
    Card(
        "core.take",
        "Elements of the last axis by index, the same ones of each row.",
        ("x: [.., N]", "indices: [K]"),
        _infer_one_order,
        lambda x, indices: x[..., indices],
        samples=(
            Sample((_X, TensorType((4,), "i32")), values={1: (6, 0, 0, 3)}),
            Sample((TensorType((3,), "f32"), TensorType((3,), "i64")), values={1: (2, 0, 1)}),
        ),
        refused=(
            BadSample((_X, TensorType((4,), "f32")), {}, "must be integers"),
            BadSample((_X, TensorType((3, 4), "i32")), {}, "indices"),
        ),
    )
)


def _infer_put(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
    dims = Dims("core.put_along")
    x = dims.match("x", types[0], "..", "N")
    indices = dims.match("indices", types[1], "..", "K")
    values = dims.match("values", types[2], "..", "K")
    if indices.dtype not in ("i32", "i64") or values.dtype != x.dtype or x.is_block:
        raise TypeMismatch(
            f"core.put_along: needs integer indices and values as x, found {x}, {indices}, {values}"
        )
    return (x,)


def _put(x: np.ndarray, indices: np.ndarray, values: np.ndarray) -> np.ndarray:
    out = x.copy()
    np.put_along_axis(out, indices, values, -1)
    return out


register(
    Card(
        "core.put_along",
        "x with elements of the last axis replaced by index, row by row; of equal indices the last "
        "counts.",
        ("x: [.., N]", "indices: [.., K]", "values: [.., K]"),
        _infer_put,
        _put,
        samples=(
            Sample((_X, _INDICES, TensorType((2, 3, 2), "f32")), values={1: _PLACES}),
            Sample(
                (TensorType((2, 4), "bool"), TensorType((2, 1), "i32"), TensorType((2, 1), "bool")),
                values={1: (3, 0)},
            ),
        ),
        refused=(BadSample((_X, _INDICES, _INDICES), {}, "values as x"),),
    )
)
