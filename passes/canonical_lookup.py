"""Canonical forms of lookups whose answer is known: all indices are one number, or all elements."""

from __future__ import annotations

from inferc.ir.core import Op, Value
from inferc.passes.driver import Edit, pattern
from inferc.passes.match import made_by, scalar, tensor

_VIEWS = ("core.broadcast_to", "core.reshape", "core.transpose", "core.slice", "core.cast")


def uniform(value: Value) -> int | float | bool | None:
    """The number that all elements of a value are, if that is known."""
    op = value.producer
    if op is None:
        return None
    if op.name in _VIEWS:
        return uniform(op.operands[0])
    if op.name != "core.constant":
        return None
    values = op.attrs["values"]
    assert isinstance(values, tuple)
    first = values[0] if len(set(values)) == 1 else None
    return first if isinstance(first, int | float) else None


@pattern("core.take_along", "core.embedding")
def take_from_uniform(op: Op, edit: Edit) -> Value | None:
    """Elements of a tensor that has only one number are that number."""
    number = uniform(op.operands[0])
    if number is None:
        return None
    dtype = tensor(op.result).dtype
    scalar = edit.op("core.constant", values=(number,), shape=(), dtype=dtype)
    return edit.op("core.broadcast_to", scalar, shape=tensor(op.result).shape)


@pattern("core.embedding")
def one_row(op: Op, edit: Edit) -> Value | None:
    """The same row for all tokens (a token type) is one vector, broadcast."""
    table, ids = op.operands
    row = uniform(ids)
    if row is None or made_by(ids, "core.broadcast_to", "core.constant", *_VIEWS) is None:
        return None
    width = tensor(table).shape[1]
    start = int(row)
    part = edit.op("core.slice", table, axis=0, start=start, stop=start + 1)
    vector = edit.op("core.reshape", part, shape=(width,))
    if tensor(vector).dtype != tensor(op.result).dtype:
        vector = edit.op("core.cast", vector, dtype=tensor(op.result).dtype)
    return edit.op("core.broadcast_to", vector, shape=tensor(op.result).shape)


@pattern("core.embedding")
def later_rows(op: Op, edit: Edit) -> Value | None:
    """Rows at ids + 2 are rows at ids of the table without its first two."""
    table, ids = op.operands
    shifted = made_by(ids, "core.add")
    offset = scalar(shifted.operands[1]) if shifted is not None else None
    rows = tensor(table).shape[0]
    if shifted is None or offset is None or not isinstance(rows, int) or not 0 < offset < rows:
        return None
    edit.covers(shifted)
    rest = edit.op("core.slice", table, axis=0, start=int(offset), stop=rows)
    return edit.op("core.embedding", rest, shifted.operands[0])


LOOKUP = (take_from_uniform, one_row, later_rows)
