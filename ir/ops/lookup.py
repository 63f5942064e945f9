"""Rows of a table by index."""

from __future__ import annotations

from collections.abc import Sequence

from inferc.ir.card import Attrs, BadSample, Card, Sample, TypeMismatch, register
from inferc.ir.dims import Size
from inferc.ir.ops._shapes import compute_dtype, tensor_of
from inferc.ir.types import TensorType, Type


def _infer_gather_rows(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
    x, rows = (
        tensor_of("core.gather_rows", "x", types[0]),
        tensor_of("core.gather_rows", "rows", types[1]),
    )
    if rows.rank != 1 or rows.dtype not in ("i32", "i64") or x.rank < 1:
        raise TypeMismatch(
            f"core.gather_rows: x must have an axis, rows be i32[L]; found {x}, {rows}"
        )
    return (x.with_shape((rows.shape[0], *x.shape[1:])),)


def _row_reads(types: Sequence[Type], attrs: Attrs) -> tuple[Size, ...]:
    x, rows = types
    assert isinstance(x, TensorType) and isinstance(rows, TensorType)
    return x.with_shape((rows.shape[0], *x.shape[1:])).nbytes, rows.nbytes


register(
    Card(
        "core.gather_rows",
        "Rows of x by index.",
        ("x: [T, ..]", "rows: [L]"),
        _infer_gather_rows,
        lambda x, rows: x[rows],
        reads=_row_reads,
        samples=(Sample((TensorType((5, 3), "f32"), TensorType((2,), "i32")), values={1: (4, 1)}),),
        refused=(BadSample((TensorType((5, 3), "f32"), TensorType((2,), "f32")), {}, "i32[L]"),),
    )
)


def _infer_embedding(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
    w, ids = (
        tensor_of("core.embedding", "w", types[0]),
        tensor_of("core.embedding", "ids", types[1]),
    )
    if w.rank != 2 or ids.dtype not in ("i32", "i64"):
        raise TypeMismatch(f"core.embedding: needs w [V, H] and integer ids, found {w} and {ids}")
    return (TensorType((*ids.shape, w.shape[1]), compute_dtype(w)),)


def _embedding_reads(types: Sequence[Type], attrs: Attrs) -> tuple[Size, ...]:
    w, ids = types
    assert isinstance(w, TensorType) and isinstance(ids, TensorType)
    return w.with_shape((*ids.shape, w.shape[1])).nbytes, ids.nbytes


register(
    Card(
        "core.embedding",
        "Row ids of the table w, dequantised.",
        ("w: [V, H]", "ids: [..]"),
        _infer_embedding,
        lambda w, ids: w[ids],
        reads=_embedding_reads,
        samples=(
            Sample(
                (TensorType((7, 4), "f32"), TensorType((2, 3), "i64")),
                values={1: (0, 6, 3, 3, 1, 2)},
            ),
            Sample((TensorType((7, 32), "q8_0"), TensorType((3,), "i32")), values={1: (6, 0, 5)}),
        ),
        refused=(BadSample((TensorType((7, 4), "f32"), TensorType((3,), "f32")), {}, "integer"),),
    )
)
