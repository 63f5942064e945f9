"""Ops that mix positions, from whole sequences `[1, T, ..]` to rows `[T, ..]` with state."""

from __future__ import annotations

from inferc.ir.core import Op, Value
from inferc.ir.rewrite import Rewriter
from inferc.passes.analysis.token_parallel import shape_of


def rows_of(value: Value) -> Value:
    """The `[T, ..]` that `value` is a reshape to `[1, T, ..]` of; else `value` itself."""
    op = value.producer
    if op is not None and op.name == "core.reshape":
        if shape_of(op.operands[0]) == shape_of(value)[1:]:
            return op.operands[0]
    return value


def unbatched(rewriter: Rewriter, op: Op, value: Value) -> Value:
    """An operand `[1, T, ..]` of `op` as `[T, ..]`."""
    row = rows_of(value)
    if row is not value:
        return row
    shape = shape_of(value)[1:]
    return rewriter.insert("core.reshape", value, before=op, of=[op], shape=shape).result


def replace_by_rows(rewriter: Rewriter, op: Op, rows: Value) -> None:
    """Let readers of the result `[1, T, ..]` of `op` read `rows` `[T, ..]`; erase `op`."""
    for user in op.result.users:
        if user.name == "core.reshape" and user.result.type == rows.type:
            rewriter.replace_value(user.result, rows)
            rewriter.erase(user)
    shape, operands = shape_of(op.result), op.operands
    batch = rewriter.insert("core.reshape", rows, before=op, of=[op], shape=shape)
    rewriter.replace_value(op.result, batch.result)
    rewriter.erase(op)
    for value in dict.fromkeys((batch.result, *operands)):
        unread = not value.uses and not rewriter.func.is_result(value)
        if unread and value.producer is not None and value.producer.name == "core.reshape":
            rewriter.erase(value.producer)
