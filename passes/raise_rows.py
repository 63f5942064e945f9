"""Rows of a table that is computed from the row number are computed from the ids.

    %n = core.iota() {size = 2048} : f32[2048]
    %c = core.reshape(%n) : f32[2048, 1]               %c = core.reshape(%ids) : f32[B, S, 1]
    %a = core.mul(%c, %frequencies)              =>    %a = core.mul(%c, %frequencies)
    %t = core.sin(%a) : f32[2048, 32]                  %y = core.sin(%a) : f32[B, S, 32]
    %y = core.embedding(%t, %ids) : f32[B, S, 32]

Models keep such tables of sines and cosines for speed. Rotary embedding is found behind them only
when they are gone, and a table of constants would have to be stored.

Not raised: tables with a part that has rows of its own (a parameter), or whose rows are joined.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferc.ir.core import Module, Op, Value
from inferc.ir.dims import Size
from inferc.ir.ops.elementwise import ELEMENTWISE
from inferc.passes.base import Pass, PassContext
from inferc.passes.driver import Edit, apply_patterns, pattern
from inferc.passes.match import axis_attr, is_unit, same_size, tensor


@dataclass(frozen=True)
class RaiseRows(Pass):
    """Computes rows instead of looking them up; stands before constants are folded to tables."""

    name = "raise-rows"

    def run(self, module: Module, context: PassContext) -> None:
        """Rewrite every function."""
        for func in module:
            apply_patterns(func, context, (computed_rows,))


@pattern("core.embedding")
def computed_rows(op: Op, edit: Edit) -> Value | None:
    """Rows of a table that is computed from the row number: computed from the ids."""
    table, ids = op.operands
    if not _of_row_number(table):
        return None
    made = _row(table, ids, edit)
    dtype = tensor(op.result).dtype
    return made if tensor(made).dtype == dtype else edit.op("core.cast", made, dtype=dtype)


def _has_rows(value: Value, rank: int, rows: Size) -> bool:
    """Whether an operand of an op of this rank has the axis of rows; it is the first one."""
    return tensor(value).rank == rank and same_size(tensor(value).shape[0], rows)


def _of_row_number(table: Value) -> bool:
    """Whether each row is a function of its number, and of nothing else that has rows."""
    op, rows, rank = table.producer, tensor(table).shape[0], tensor(table).rank
    if op is None or is_unit(rows):
        return False
    if op.name == "core.iota":
        return True
    if op.name == "core.reshape":
        inner = op.operands[0]
        return same_size(tensor(inner).shape[0], rows) and _of_row_number(inner)
    if op.name == "core.concat" and axis_attr(op) == 0:
        return False
    if op.name not in ELEMENTWISE and op.name != "core.concat":
        return False
    parts = [v for v in op.operands if _has_rows(v, rank, rows)]
    return bool(parts) and all(map(_of_row_number, parts))


def _row(table: Value, ids: Value, edit: Edit) -> Value:
    """The table with the row numbers replaced by ids: [N, ..] becomes [*ids, ..]."""
    op, rows, rank = table.producer, tensor(table).shape[0], tensor(table).rank
    assert op is not None
    edit.covers(op)
    if op.name == "core.iota":
        dtype = tensor(table).dtype
        return ids if tensor(ids).dtype == dtype else edit.op("core.cast", ids, dtype=dtype)
    if op.name == "core.reshape":
        shape = (*tensor(ids).shape, *tensor(table).shape[1:])
        return edit.op("core.reshape", _row(op.operands[0], ids, edit), shape=shape)
    operands = [_row(v, ids, edit) if _has_rows(v, rank, rows) else v for v in op.operands]
    if op.name == "core.concat":
        axis = axis_attr(op) + tensor(ids).rank - 1
        return edit.op("core.concat", *operands, axis=axis)
    return edit.like(op, *operands)
