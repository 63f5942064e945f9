"""ONNX operators that move elements, and those that compute shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx
from onnx import numpy_helper

from inferc.errors import CompileError
from inferc.frontend.onnx_elementwise import expand
from inferc.frontend.onnx_fold import number_of
from inferc.frontend.onnx_table import (
    Node,
    OnnxEmitter,
    axis_in,
    dtype_of_item,
    onnx_op,
    shape_of,
)
from inferc.frontend.onnx_values import Filled, Item, Known, Unsaid, known, settled
from inferc.frontend.onnx_weights import dtype_of
from inferc.ir.dims import InconclusiveDim, Size, divide, product

_END = 2**31 - 1  # slice bounds from here on mean "to the end"


@onnx_op("Shape")
def _shape(e: OnnxEmitter, n: Node) -> Item:
    shape = shape_of(n.input(0))
    end = n.attr("end")
    return known(list(shape[slice(n.attr("start", 0), end)]))


@onnx_op("Size")
def _size(e: OnnxEmitter, n: Node) -> Item:
    return known(product(shape_of(n.input(0))))


@onnx_op("Constant")
def _constant(e: OnnxEmitter, n: Node) -> Item:
    for name, dtype in (("value_float", "f32"), ("value_int", "i64"), ("value_floats", "f32"),
                        ("value_ints", "i64")):  # fmt: skip
        if name in n.attrs:
            value = n.attrs[name]
            return known(list(value) if name.endswith("s") else value, dtype)
    if "value" not in n.attrs:
        raise CompileError("its value is of a kind that is not supported.")
    return known_tensor(n.attrs["value"])


def known_tensor(proto: onnx.TensorProto) -> Known:
    """A TensorProto as a known array; floats are f32."""
    array = numpy_helper.to_array(proto)
    dtype = dtype_of(proto.data_type, "A constant")
    if dtype.startswith(("f", "bf")):
        return Known(array.astype(np.float64), "f32")
    return Known(array, dtype)


@onnx_op("ConstantOfShape")
def _constant_of_shape(e: OnnxEmitter, n: Node) -> Item:
    shape = tuple(e.sizes(n.input(0), "shape"))
    fill = known_tensor(n.attrs["value"]) if "value" in n.attrs else known([0.0], "f32")
    return Filled(fill.elements()[0], shape, fill.dtype)


@onnx_op("Reshape")
def _reshape(e: OnnxEmitter, n: Node) -> Item:
    x, wanted = n.input(0), e.sizes(n.input(1), "shape")
    own = shape_of(x)
    if not n.attr("allowzero", 0):
        wanted = [own[i] if s == 0 and i < len(own) else s for i, s in enumerate(wanted)]
    if -1 in wanted:
        rest = product(tuple(s for s in wanted if s != -1))
        try:
            wanted[wanted.index(-1)] = divide(product(own), rest)
        except InconclusiveDim as error:
            raise CompileError(f"its shape {wanted} is not known: {error}.") from error
    return reshaped(e, x, tuple(wanted))


def reshaped(e: OnnxEmitter, x: Item, shape: tuple[Size, ...]) -> Item:
    """The item with another shape of as many elements."""
    if e.eq(product(shape_of(x)), product(shape)) is not True:
        raise CompileError(f"{shape_of(x)} cannot be given the shape {shape}.")
    if isinstance(x, Filled):
        return Filled(x.value, shape, x.dtype)
    if isinstance(x, Unsaid):
        return replace(x, shape=shape)
    if isinstance(x, Known):
        return Known(x.array.reshape([s for s in shape if isinstance(s, int)]), x.dtype)
    return e.reshape(e.value(x), shape)


@onnx_op("Flatten")
def _flatten(e: OnnxEmitter, n: Node) -> Item:
    x = n.input(0)
    shape, axis = shape_of(x), n.attr("axis", 1)
    return reshaped(e, x, (product(shape[:axis]), product(shape[axis:])))


@onnx_op("Unsqueeze")
def _unsqueeze(e: OnnxEmitter, n: Node) -> Item:
    x, given = n.input(0), e.ints(n.input(1), "axes")
    shape = list(shape_of(x))
    rank = len(shape) + len(given)
    for axis in sorted(axis_in(a, rank) for a in given):
        shape.insert(axis, 1)
    return reshaped(e, x, tuple(shape))


@onnx_op("Squeeze")
def _squeeze(e: OnnxEmitter, n: Node) -> Item:
    x, given = n.input(0), n.optional(1)
    shape = shape_of(x)
    if given is None:
        axes = {i for i, s in enumerate(shape) if s == 1}
    else:
        axes = {axis_in(a, len(shape)) for a in e.ints(given, "axes")}
    return reshaped(e, x, tuple(s for i, s in enumerate(shape) if i not in axes))


@onnx_op("Transpose")
def _transpose(e: OnnxEmitter, n: Node) -> Item:
    x = n.input(0)
    rank = len(shape_of(x))
    perm = tuple(n.attr("perm", range(rank - 1, -1, -1)))
    if isinstance(x, Filled):
        return Filled(x.value, tuple(x.shape[p] for p in perm), x.dtype)
    if isinstance(x, Known):
        return Known(x.array.transpose(perm), x.dtype)
    return e.transpose(e.value(x), perm)


@onnx_op("Concat")
def _concat(e: OnnxEmitter, n: Node) -> Item:
    items = [i for i in n.inputs if i is not None]
    return joined(e, items, axis_in(n.attr("axis"), len(shape_of(items[0]))))


def joined(e: OnnxEmitter, items: list[Item], axis: int) -> Item:
    """The items one after the other; those without elements are left out."""
    kept = [i for i in items if shape_of(i)[axis] != 0] or items[:1]
    if len(kept) == 1:
        return kept[0]
    if all(isinstance(i, Known) for i in kept):
        arrays = [i.array for i in kept]  # type: ignore[union-attr]
        if any(a.dtype == object for a in arrays):
            arrays = [a.astype(object) for a in arrays]
        return settled(np.concatenate(arrays, axis), dtype_of_item(kept[0]))
    if all(isinstance(i, Filled) for i in kept) and len({i.value for i in kept}) == 1:  # type: ignore[union-attr]
        shape = list(shape_of(kept[0]))
        for other in kept[1:]:
            shape[axis] = shape[axis] + shape_of(other)[axis]
        return Filled(kept[0].value, tuple(shape), dtype_of_item(kept[0]))  # type: ignore[union-attr]
    return e.emit("concat", *(e.value(i) for i in kept), axis=axis)


@onnx_op("Split")
def _split(e: OnnxEmitter, n: Node) -> tuple[Item, ...]:
    x = n.input(0)
    axis = axis_in(n.attr("axis", 0), len(shape_of(x)))
    size, given, count = shape_of(x)[axis], n.optional(1), n.attr("num_outputs", len(n.outputs))
    if given is not None:
        sizes = e.sizes(given, "split sizes")
    elif isinstance(size, int):
        part = -(-size // count)
        sizes = [min(part, size - part * i) for i in range(count)]
    else:
        sizes = [divide(size, count)] * count
    pieces: list[Item] = []
    start: Size = 0
    for part in sizes:
        pieces.append(sliced(e, x, axis, start, start + part))
        start = start + part
    return tuple(pieces)


@onnx_op("Slice")
def _slice(e: OnnxEmitter, n: Node) -> Item:
    x = n.input(0)
    starts, ends = e.sizes(n.input(1), "start"), e.sizes(n.input(2), "end")
    given_axes, given_steps = n.optional(3), n.optional(4)
    axes = e.ints(given_axes, "axes") if given_axes is not None else list(range(len(starts)))
    steps = e.ints(given_steps, "steps") if given_steps is not None else [1] * len(axes)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        at = axis_in(axis, len(shape_of(x)))
        size = shape_of(x)[at]
        if step < 1:
            raise CompileError(f"a slice with step {step} is not supported.")
        x = sliced(e, x, at, _bound(e, start, size), _bound(e, end, size), step)
    return x


def _bound(e: OnnxEmitter, index: Size, size: Size) -> Size:
    """A slice bound within the axis, as ONNX clamps it. Raises CompileError where unknown."""
    if isinstance(index, int) and index >= _END:
        return size
    if isinstance(index, int) and index < 0:
        index = 0 if index <= -_END else size + index
    if e.le(0, index) is False:
        index = 0
    above = e.le(index, size)
    if above is False:
        return size
    if above is None or e.le(0, index) is None:
        if e.le(size, index) is True:
            return size
        raise CompileError(f"whether its bound {index} lies within {size} elements is not known.")
    return index


def sliced(e: OnnxEmitter, x: Item, axis: int, start: Size, stop: Size, step: int = 1) -> Item:
    """Elements start to stop of an axis; the bounds are within it."""
    if e.le(stop, start) is True:
        stop = start
    if isinstance(x, Known) and isinstance(start, int) and isinstance(stop, int):
        index = [slice(None)] * x.array.ndim
        index[axis] = slice(start, stop, step)
        return settled(x.array[tuple(index)], x.dtype)
    if isinstance(x, Filled):
        length = stop - start
        if step != 1:
            length = -(-length // step) if isinstance(length, int) else divide(length, step)
        return Filled(x.value, (*x.shape[:axis], length, *x.shape[axis + 1 :]), x.dtype)
    return e.slice(e.value(x), axis, start, stop, step)


@onnx_op("Pad")
def _pad(e: OnnxEmitter, n: Node) -> Item:
    """One number before and after an axis."""
    n.only(mode="constant")
    x, pads, given = n.input(0), e.sizes(n.input(1), "pads"), n.optional(2)
    axes = range(len(shape_of(x))) if n.optional(3) is None else e.ints(n.input(3), "axes")
    dtype = dtype_of_item(x)
    fill = known(0, dtype) if given is None else given
    count = len(pads) // 2
    for axis, before, after in zip(axes, pads[:count], pads[count:], strict=True):
        at = axis_in(axis, len(shape_of(x)))
        if e.le(0, before) is not True or e.le(0, after) is not True:
            raise CompileError(f"pads {before} and {after}, which may cut, are not supported.")
        shape = list(shape_of(x))
        sides = [Filled(number_of(fill), (*shape[:at], s, *shape[at + 1 :]), dtype)
                 for s in (before, after)]  # fmt: skip
        x = joined(e, [sides[0], x, sides[1]], at)
    return x


@onnx_op("Expand")
def _expand(e: OnnxEmitter, n: Node) -> Item:
    x, wanted = n.input(0), e.sizes(n.input(1), "shape")
    own = shape_of(x)
    rank = max(len(own), len(wanted))
    shape: list[Size] = []
    for a, b in zip(_padded(own, rank), _padded(wanted, rank), strict=True):
        if a == 1 or b == 1 or e.eq(a, b):
            shape.append(b if a == 1 else a)
        else:
            raise CompileError(f"{own} is not known to broadcast to {wanted}.")
    return expand(e, x, tuple(shape))


def _padded(shape: Sequence[Size], rank: int) -> list[Size]:
    return [*([1] * (rank - len(shape))), *shape]


@onnx_op("Tile")
def _tile(e: OnnxEmitter, n: Node) -> Item:
    """Every axis `s` repeated `r` times is `[r, s]` broadcast from `[1, s]`."""
    x, repeats = n.input(0), e.sizes(n.input(1), "repeats")
    shape = shape_of(x)
    wide = reshaped(e, x, tuple(v for s in shape for v in (1, s)))
    full = expand(e, wide, tuple(v for r, s in zip(repeats, shape, strict=True) for v in (r, s)))
    return reshaped(e, full, tuple(r * s for r, s in zip(repeats, shape, strict=True)))
