"""Operands that kernels read where they lie: a part of the rows of an argument."""

from __future__ import annotations

from dataclasses import dataclass

from inferc.codegen.group import has_rows, row_elements, static_size, tensor, through_reshape
from inferc.ir.core import Op, Value


class Unfit(ValueError):
    """A group is not of a kernel's form; the message is the reason."""


@dataclass(frozen=True)
class OperandRows:
    """Rows of an argument: element offset and stride."""

    index: int
    offset: int
    stride: int


def operand_rows(value: Value) -> OperandRows:
    """Walk back through reshapes and slices of rows to an argument of the body. Raises Unfit."""
    value, offset = through_reshape(value), 0
    while value.producer is not None:
        op = value.producer
        if op.name != "core.slice" or op.attrs["step"] != 1:
            raise Unfit(f"{op.name} between an operand and its rows")
        if op.attrs["axis"] != 1 or not isinstance(op.attrs["start"], int):
            raise Unfit("a slice of rows")
        source = tensor(op.operands[0])
        offset += op.attrs["start"] * (row_elements(source) // static_size(op.operands[0], 1))
        value = through_reshape(op.operands[0])
    if not has_rows(value.type) or tensor(value).dtype != "f32":
        raise Unfit(f"%{value.hint}: {value.type} has no float rows")
    return OperandRows(value.index, offset, row_elements(tensor(value)))


def made_by(value: Value, name: str) -> Op | None:
    """The op of a name that made what `value` views."""
    op = through_reshape(value).producer
    return op if op is not None and op.name == name else None


def argument(op: Op | None, operand: int) -> int | None:
    """Index of the body's argument that an op reads; None without an op. Raises Unfit."""
    if op is None:
        return None
    value = through_reshape(op.operands[operand])
    if value.producer is not None:
        raise Unfit(f"operand {operand} of {op.name} is computed inside the group")
    return value.index
