"""Ops without operands: parameters and constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from inferc.ir.card import Attr, Attrs, BadSample, Card, Sample, TypeMismatch, register
from inferc.ir.dims import product
from inferc.ir.ops._shapes import SIZE, sizes_of
from inferc.ir.types import DTYPES, TensorType, Type, numpy_dtype


def _bad_param(*_: Any, **__: Any) -> Any:
    raise RuntimeError("parameters are bound by the interpreter")


def _no_infer(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
    raise TypeMismatch("the result type of this op is given, not inferred")


register(
    Card(
        "param",
        "A stored parameter of the model.",
        (),
        _no_infer,
        _bad_param,
        (Attr("name", (str,)),),
    )
)


def _infer_constant(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
    shape, values = sizes_of(attrs, "shape"), attrs["values"]
    assert isinstance(values, tuple)
    if product(shape) != len(values):
        raise TypeMismatch(f"core.constant: {len(values)} values for shape {shape}")
    return (TensorType(shape, str(attrs["dtype"])),)


register(
    Card(
        "core.constant",
        "A small constant, its values in row-major order.",
        (),
        _infer_constant,
        lambda values, shape, dtype: np.array(values).reshape(shape).astype(numpy_dtype(dtype)),
        attrs=(
            Attr("values", (tuple,)),
            Attr("shape", (tuple,)),
            Attr("dtype", (str,), choices=DTYPES),
        ),
        samples=(Sample((), {"values": (1.5, 2.0), "shape": (2,), "dtype": "f32"}),),
        refused=(BadSample((), {"values": (1.5,), "shape": (2,), "dtype": "f32"}, "1 values"),),
    )
)
register(
    Card(
        "core.iota",
        "0, 1, 2 … size - 1.",
        (),
        lambda types, attrs: (TensorType((attrs["size"],), str(attrs["dtype"])),),  # type: ignore[arg-type]
        lambda size, dtype: np.arange(size).astype(numpy_dtype(dtype)),
        attrs=(Attr("size", SIZE), Attr("dtype", (str,), choices=DTYPES)),
        samples=(Sample((), {"size": 5, "dtype": "i64"}),),
    )
)
