"""Columns in another order: what goes in front of a product with a weight stored in act-order."""

from __future__ import annotations

from dataclasses import dataclass

from inferc.codegen.group import Group, has_rows, row_elements, tensor, through_reshape
from inferc.codegen.kernel import Answer, KernelDef, KernelOptions, Ok, Refusal, WeightUse
from inferc.ir.core import Value


@dataclass(frozen=True)
class TakeParams:
    """Variables of `take.cpp.j2`."""

    name: str
    x: int
    columns: int
    y: int
    width: int
    count: int


def _operands(group: Group) -> tuple[Value, Value]:
    x, columns = group.ops("core.take")[0].operands
    return through_reshape(x), through_reshape(columns)


def _supports(group: Group, options: KernelOptions) -> Answer:
    op, (x, columns) = group.ops("core.take")[0], _operands(group)
    if x.producer is not None or not has_rows(x.type) or tensor(x).dtype != "f32":
        return Refusal(f"takes from {x.type}, expected float rows of another kernel")
    if (
        columns.producer is not None
        or tensor(columns).dtype != "i32"
        or tensor(op.operands[0]).rank != 2
    ):
        return Refusal(
            f"columns {columns.type} of {op.operands[0].type}, expected i32 and a matrix"
        )
    if len(group.body.results) != 1 or through_reshape(group.body.results[0]) is not op.result:
        return Refusal("other ops beside the take")
    return Ok()


def _params(group: Group, options: KernelOptions, name: str) -> TakeParams:
    x, columns = _operands(group)
    y = len(group.op.operands)
    return TakeParams(
        name, x.index, columns.index, y, row_elements(tensor(x)), row_elements(tensor(columns))
    )


def _weights(group: Group) -> tuple[WeightUse, ...]:
    columns = _operands(group)[1]
    return (WeightUse("vector", (columns.index,)),) if group.is_weight(columns) else ()


TAKE = KernelDef(
    name="take",
    summary="columns by number, the same of each row",
    priority=10,
    matches=lambda group: len(group.ops("core.take")) == 1,
    supports=_supports,
    params=_params,
    template="take.cpp.j2",
    weights=_weights,
)
