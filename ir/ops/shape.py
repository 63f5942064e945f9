"""Ops that move or select elements, constants and parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from inferc.ir.card import Attr, Attrs, Card, Sample, TypeMismatch, register
from inferc.ir.dims import Dim, Size, known_eq, known_le, product
from inferc.ir.ops._shapes import axis_of, compute_dtype, tensor_of
from inferc.ir.types import DTYPES, TensorType, Type, numpy_dtype

_SIZE = (int, Dim)


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


def _sizes(attrs: Attrs, name: str) -> tuple[Size, ...]:
    sizes = attrs[name]
    if not isinstance(sizes, tuple) or not all(isinstance(s, _SIZE) for s in sizes):
        raise TypeMismatch(f"attribute {name!r} must be a tuple of sizes, found {sizes!r}")
    return sizes  # type: ignore[return-value]


def _infer_constant(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
    shape, values = _sizes(attrs, "shape"), attrs["values"]
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
    )
)
register(
    Card(
        "core.iota",
        "0, 1, 2 … size - 1.",
        (),
        lambda types, attrs: (TensorType((attrs["size"],), str(attrs["dtype"])),),  # type: ignore[arg-type]
        lambda size, dtype: np.arange(size).astype(numpy_dtype(dtype)),
        attrs=(Attr("size", _SIZE), Attr("dtype", (str,), choices=DTYPES)),
        samples=(Sample((), {"size": 5, "dtype": "i64"}),),
    )
)


def _infer_reshape(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
    x, shape = tensor_of("core.reshape", "x", types[0]), _sizes(attrs, "shape")
    if known_eq(x.elements, product(shape)) is not True:
        raise TypeMismatch(
            f"core.reshape: {x} has {x.elements} elements, {shape} has {product(shape)}"
        )
    if x.is_block and known_eq(x.shape[-1], shape[-1]) is not True:
        raise TypeMismatch(f"core.reshape: {x} is block-quantised, its last axis must stay")
    return (x.with_shape(shape),)


register(
    Card(
        "core.reshape",
        "Same elements in row-major order, other shape.",
        ("x: [..]",),
        _infer_reshape,
        lambda x, shape: x.reshape(shape),
        attrs=(Attr("shape", (tuple,)),),
        samples=(Sample((TensorType((4, 6), "f32"),), {"shape": (2, 12)}),),
    )
)


def _infer_transpose(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
    x, perm = tensor_of("core.transpose", "x", types[0]), attrs["perm"]
    assert isinstance(perm, tuple)
    if sorted(perm) != list(range(x.rank)):  # type: ignore[type-var]
        raise TypeMismatch(f"core.transpose: {perm} is no permutation of the axes of {x}")
    if x.is_block and perm[-1] != x.rank - 1:
        raise TypeMismatch(f"core.transpose: {x} is block-quantised, its last axis must stay last")
    return (x.with_shape(tuple(x.shape[int(i)] for i in perm)),)  # type: ignore[arg-type]


register(
    Card(
        "core.transpose",
        "Axes permuted: result axis i is axis perm[i] of x.",
        ("x: [..]",),
        _infer_transpose,
        lambda x, perm: np.transpose(x, perm),
        attrs=(Attr("perm", (tuple,)),),
        samples=(Sample((TensorType((2, 3, 4), "f32"),), {"perm": (0, 2, 1)}),),
    )
)


def _infer_slice(types: Sequence[Type], attrs: Attrs) -> tuple[TensorType]:
    x = tensor_of("core.slice", "x", types[0])
    axis = axis_of("core.slice", attrs["axis"], x.rank)
    start, stop, step = attrs["start"], attrs["stop"], attrs["step"]
    assert isinstance(start, _SIZE) and isinstance(stop, _SIZE) and isinstance(step, int)
    if known_le(0, start) is False or known_le(stop, x.shape[axis]) is False or step < 1:
        raise TypeMismatch(f"core.slice: {start}..{stop} step {step} of axis {axis} of {x}")
    if x.is_block and axis == x.rank - 1:
        raise TypeMismatch(f"core.slice: {x} is block-quantised along axis {axis}")
    length = stop - start
    if step != 1:
        length = (length + (step - 1)) // step if isinstance(length, int) else length // step
    return (x.with_shape((*x.shape[:axis], length, *x.shape[axis + 1 :])),)


def _slice(x: np.ndarray, axis: int, start: int, stop: int, step: int = 1) -> np.ndarray:
    index = [slice(None)] * x.ndim
    index[axis] = slice(start, stop, step)
    return x[tuple(index)]


register(
    Card(
        "core.slice",
        "Elements start, start + step … below stop of one axis.",
        ("x: [..]",),
        _infer_slice,
        _slice,
        reads=lambda types, attrs: (_infer_slice(types, attrs)[0].nbytes,),
        attrs=(
            Attr("axis", (int,)),
            Attr("start", _SIZE),
            Attr("stop", _SIZE),
            Attr("step", (int,), False, 1),
        ),
        samples=(
            Sample((TensorType((4, 6), "f32"),), {"axis": 1, "start": 1, "stop": 6, "step": 2}),
        ),
    )
)


def _infer_concat(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
    tensors = [tensor_of("core.concat", f"operand {i}", t) for i, t in enumerate(types)]
    if not tensors:
        raise TypeMismatch("core.concat: needs an operand")
    first = tensors[0]
    axis = axis_of("core.concat", attrs["axis"], first.rank)
    total: Size = 0
    for tensor in tensors:
        rest = tensor.rank == first.rank and all(
            i == axis or known_eq(a, b) is True
            for i, (a, b) in enumerate(zip(tensor.shape, first.shape, strict=True))
        )
        if not rest or tensor.dtype != first.dtype:
            raise TypeMismatch(f"core.concat: {tensor} does not fit {first} along axis {axis}")
        total = total + tensor.shape[axis]
    if first.is_block and axis == first.rank - 1 and len(tensors) > 1:
        raise TypeMismatch(f"core.concat: {first} is block-quantised along axis {axis}")
    return (first.with_shape((*first.shape[:axis], total, *first.shape[axis + 1 :])),)


register(
    Card(
        "core.concat",
        "Operands one after another along an axis.",
        ("*x: [..]",),
        _infer_concat,
        lambda *x, axis: np.concatenate(x, axis),
        attrs=(Attr("axis", (int,)),),
        samples=(Sample((TensorType((2, 3), "f32"), TensorType((2, 4), "f32")), {"axis": 1}),),
    )
)


def _infer_broadcast_to(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
    x, shape = tensor_of("core.broadcast_to", "x", types[0]), _sizes(attrs, "shape")
    tail = shape[len(shape) - x.rank :]
    if len(shape) < x.rank or any(
        a != 1 and known_eq(a, b) is not True for a, b in zip(x.shape, tail, strict=True)
    ):
        raise TypeMismatch(f"core.broadcast_to: {x} does not broadcast to {shape}")
    return (x.with_shape(shape),)


register(
    Card(
        "core.broadcast_to",
        "x repeated to a shape by numpy's rules.",
        ("x: [..]",),
        _infer_broadcast_to,
        lambda x, shape: np.broadcast_to(x, shape),
        attrs=(Attr("shape", (tuple,)),),
        samples=(Sample((TensorType((3, 1), "f32"),), {"shape": (2, 3, 4)}),),
    )
)


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
    )
)
