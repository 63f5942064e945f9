"""Ops that only masks need, as exporters write them; they are evaluated, never compiled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inferc.ir.card import Attr, Attrs, BadSample, Card, Sample, TypeMismatch, register
from inferc.ir.ops._shapes import axis_of, tensor_of
from inferc.ir.types import TensorType, Type


def _infer_cumsum(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
    x = tensor_of("core.cumsum", "x", types[0])
    axis_of("core.cumsum", attrs["axis"], x.rank)
    return (x,)


register(
    Card(
        "core.cumsum",
        "Sums of all elements up to each one along an axis.",
        ("x: [..]",),
        _infer_cumsum,
        lambda x, axis: np.cumsum(x, axis, dtype=x.dtype),
        attrs=(Attr("axis", (int,)),),
        flops=lambda types, attrs: types[0].elements,  # type: ignore[union-attr]
        samples=(Sample((TensorType((3, 5), "f32"),), {"axis": 1}),),
        refused=(BadSample((TensorType((3, 5), "f32"),), {"axis": 2}, "axis 2"),),
    )
)


def _infer_gather_nd(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
    x, places = (
        tensor_of("core.gather_nd", n, t) for n, t in zip(("x", "places"), types, strict=True)
    )
    depth = places.shape[-1] if places.rank else None
    if not isinstance(depth, int) or depth > x.rank or places.dtype not in ("i32", "i64"):
        raise TypeMismatch(
            f"core.gather_nd: places must be integers [.., at most {x.rank}], found {places}"
        )
    return (x.with_shape((*places.shape[:-1], *x.shape[depth:])),)


register(
    Card(
        "core.gather_nd",
        "Elements of x at places: the last axis of `places` holds an index for each first axis.",
        ("x: [..]", "places: [.., N]"),
        _infer_gather_nd,
        lambda x, places: x[tuple(np.moveaxis(places, -1, 0))],
        samples=(
            Sample(
                (TensorType((3, 5), "f32"), TensorType((4, 2), "i64")),
                values={1: (0, 0, 2, 4, 1, 3, 0, 1)},
            ),
        ),
        refused=(
            BadSample((TensorType((5,), "f32"), TensorType((4, 2), "i64")), {}, "at most 1"),
            BadSample((TensorType((5,), "f32"), TensorType((4, 1), "f32")), {}, "must be integers"),
        ),
    )
)
