"""Ops that move or select elements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inferc.ir.card import Attr, Attrs, BadSample, Card, Sample, TypeMismatch, register
from inferc.ir.dims import Size, known_eq, known_le, product
from inferc.ir.ops._shapes import SIZE, axis_of, sizes_of, tensor_of
from inferc.ir.types import TensorType, Type


def _infer_reshape(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
    x, shape = tensor_of("core.reshape", "x", types[0]), sizes_of(attrs, "shape")
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
        refused=(
            BadSample((TensorType((4, 6), "f32"),), {"shape": (5, 5)}, "has 24 elements"),
            BadSample((TensorType((2, 64), "q8_0"),), {"shape": (4, 32)}, "last axis must stay"),
        ),
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
        refused=(
            BadSample((TensorType((2, 3), "f32"),), {"perm": (0, 0)}, "no permutation"),
            BadSample((TensorType((2, 32), "q8_0"),), {"perm": (1, 0)}, "must stay last"),
        ),
    )
)


def _infer_slice(types: Sequence[Type], attrs: Attrs) -> tuple[TensorType]:
    x = tensor_of("core.slice", "x", types[0])
    axis = axis_of("core.slice", attrs["axis"], x.rank)
    start, stop, step = attrs["start"], attrs["stop"], attrs["step"]
    assert isinstance(start, SIZE) and isinstance(stop, SIZE) and isinstance(step, int)
    inside = (known_le(0, start), known_le(start, stop), known_le(stop, x.shape[axis]))
    if False in inside or step < 1:
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
            Attr("start", SIZE),
            Attr("stop", SIZE),
            Attr("step", (int,), False, 1),
        ),
        samples=(
            Sample((TensorType((4, 6), "f32"),), {"axis": 1, "start": 1, "stop": 6, "step": 2}),
        ),
        refused=(
            BadSample(
                (TensorType((4, 6), "f32"),), {"axis": 1, "start": 1, "stop": 7}, "1..7 step 1"
            ),
            BadSample(
                (TensorType((4, 6), "f32"),), {"axis": 1, "start": 4, "stop": 2}, "4..2 step 1"
            ),
            BadSample(
                (TensorType((4, 64), "q8_0"),), {"axis": 1, "start": 0, "stop": 32}, "block-quant"
            ),
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
        refused=(
            BadSample(
                (TensorType((2, 3), "f32"), TensorType((3, 4), "f32")), {"axis": 1}, "does not fit"
            ),
            BadSample(
                (TensorType((2, 3), "f32"), TensorType((3,), "f32")), {"axis": 0}, "does not fit"
            ),
        ),
    )
)


def _infer_broadcast_to(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
    x, shape = tensor_of("core.broadcast_to", "x", types[0]), sizes_of(attrs, "shape")
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
        refused=(BadSample((TensorType((3,), "f32"),), {"shape": (4,)}, "does not broadcast"),),
    )
)
