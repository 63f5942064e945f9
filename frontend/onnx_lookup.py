"""ONNX operators that count, compare places and look up rows."""

from __future__ import annotations

import numpy as np

from inferc.errors import CompileError
from inferc.frontend.onnx_table import (
    Node,
    OnnxEmitter,
    axis_in,
    dtype_of_item,
    onnx_op,
    shape_of,
)
from inferc.frontend.onnx_values import Filled, Item, Known, known, settled
from inferc.ir.core import Value
from inferc.ir.dims import Dim, product


@onnx_op("Range")
def _range(e: OnnxEmitter, n: Node) -> Item:
    start, stop, step = (n.input(i) for i in range(3))
    dtype = dtype_of_item(start)
    (first,), (last,), (by,) = (e.sizes(i, "bound") for i in (start, stop, step))
    bounds = (first, last, by)
    if all(isinstance(b, int) for b in bounds):
        return known(list(range(*bounds)), dtype)  # type: ignore[arg-type]
    if isinstance(first, Dim) or by != 1:
        raise CompileError(f"the range {first} to {last} by {by} does not begin at a known number.")
    counted = e.emit("iota", size=last - first, dtype="i64" if dtype == "f32" else dtype)
    counted = e.cast(counted, dtype)
    return counted if first == 0 else e.emit("add", counted, e.scalar(first, dtype))


@onnx_op("Trilu")
def _trilu(e: OnnxEmitter, n: Node) -> Item:
    """The triangle by comparing row and column numbers, so that it can be read as a mask."""
    x, upper = n.input(0), n.attr("upper", 1)
    given = n.optional(1)
    offset = int(e.number(given, "diagonal")) if given is not None else 0
    rows, columns = shape_of(x)[-2:]
    row = e.reshape(e.emit("iota", size=rows, dtype="i64"), (rows, 1))
    column = e.emit("iota", size=columns, dtype="i64")
    if offset:
        row = e.emit("add", row, e.scalar(offset, "i64"))
    kept = e.emit("ge" if upper else "le", e.broadcast(column, (1, columns)), row)
    dtype = dtype_of_item(x)
    return e.emit("where", kept, e.value(x), e.scalar(False if dtype == "bool" else 0, dtype))


@onnx_op("Gather")
def _gather(e: OnnxEmitter, n: Node) -> Item:
    x, ids = n.input(0), n.input(1)
    axis = axis_in(n.attr("axis", 0), len(shape_of(x)))
    if isinstance(x, Filled):
        return Filled(x.value, (*x.shape[:axis], *shape_of(ids), *x.shape[axis + 1 :]), x.dtype)
    if isinstance(ids, Known) and ids.is_numeric:
        if isinstance(x, Known):
            return settled(np.take(x.array, ids.array, axis), x.dtype)
        return _gather_known(e, e.value(x), axis, ids)
    return _gather_rows(e, e.value(x), axis, e.value(ids))


def _gather_known(e: OnnxEmitter, x: Value, axis: int, ids: Known) -> Item:
    """Known places of an axis are slices."""
    size = shape_of(x)[axis]
    at = [size + int(i) if i < 0 else int(i) for i in ids.array.flat]
    pieces = [e.slice(x, axis, i, i + 1) for i in at]
    joined = pieces[0] if len(pieces) == 1 else e.emit("concat", *pieces, axis=axis)
    shape = shape_of(x)
    return e.reshape(joined, (*shape[:axis], *ids.array.shape, *shape[axis + 1 :]))


def _gather_rows(e: OnnxEmitter, x: Value, axis: int, ids: Value) -> Value:
    """Rows of a table; axes in front must have one element."""
    shape = shape_of(x)
    if any(s != 1 for s in shape[:axis]):
        raise CompileError(f"a lookup along axis {axis} of {x.type} is not supported.")
    rest = shape[axis + 1 :]
    table = e.reshape(x, (shape[axis], product(rest)))
    found = e.emit("embedding", table, ids)
    return e.reshape(found, (*shape[:axis], *shape_of(ids), *rest))


@onnx_op("GatherND")
def _gather_nd(e: OnnxEmitter, n: Node) -> Item:
    n.only(batch_dims=0)
    x, places = n.input(0), n.input(1)
    if isinstance(x, Filled):
        depth = shape_of(places)[-1]
        assert isinstance(depth, int)
        return Filled(x.value, (*shape_of(places)[:-1], *x.shape[depth:]), x.dtype)
    return e.emit("gather_nd", e.value(x), e.value(places))


@onnx_op("CumSum")
def _cumsum(e: OnnxEmitter, n: Node) -> Item:
    n.only(exclusive=0, reverse=0)
    x = n.input(0)
    axis = axis_in(int(e.number(n.input(1), "axis")), len(shape_of(x)))
    if isinstance(x, Filled) and x.value == 1:  # counts 1, 2, 3 …
        size = x.shape[axis]
        counted = e.emit("iota", size=size, dtype=x.dtype)
        wide = (size, *([1] * (len(x.shape) - 1 - axis)))
        one_more = e.emit("add", e.broadcast(e.reshape(counted, wide), x.shape),
                          e.scalar(1, x.dtype))  # fmt: skip
        return one_more
    return e.emit("cumsum", e.value(x), axis=axis)
