"""Row kernels out of our headers: embedding, rotary table, gather."""

from __future__ import annotations

from dataclasses import dataclass

from inferc.codegen.expressions import (
    Line,
    Load,
    Printer,
    Unprintable,
    literal,
    load_argument,
    reachable,
    uniform_constant,
)
from inferc.codegen.group import Group, float_attr, has_rows, row_elements, tensor, through_reshape
from inferc.codegen.kernel import (
    Answer,
    KernelDef,
    KernelOptions,
    Layout,
    Ok,
    Refusal,
    WeightUse,
)
from inferc.codegen.packing import FORMATS
from inferc.ir.core import Op, Value

_DENSE = {"f32": "float", "bf16": "bf16", "f16": "f16"}


def _is_argument(*values: Value) -> bool:
    return all(v.producer is None for v in values)


# -- embedding
@dataclass(frozen=True)
class EmbeddingParams:
    """Variables of `embedding.cpp.j2`."""

    name: str
    layout: str
    element: str
    table: int
    ids: int
    y: int
    width: int
    scale: str
    loads: tuple[Load, ...]
    lines: tuple[Line, ...]
    value: str


def table_of(group: Group) -> Value:
    """The parameter that the group looks rows up in."""
    return group.operand(group.ops("core.embedding")[0].operands[0])


def _layout(group: Group) -> Layout:
    """A table that a matrix product reads too is stored once, in the product's layout."""
    alone = all(_is_lookup(use.op, use.index) for use in table_of(group).uses)
    return "rows" if alone and tensor(table_of(group)).dtype in _DENSE else "n16"


def _is_lookup(op: Op, index: int) -> bool:
    """Whether an op reads operand `index` by row look-ups only."""
    if op.body is None:
        return False
    return all(u.op.name == "core.embedding" and u.index == 0 for u in op.body.args[index].uses)


def _is_scale(group: Group) -> float | None:
    """The constant that looked-up rows are multiplied by if that is all there is, else None."""
    scale, value = 1.0, group.ops("core.embedding")[0].result
    while value is not through_reshape(group.body.results[0]):
        users = [op for op in value.users if op.name != "core.reshape"]
        if len(users) != 1 or users[0].name != "core.mul":
            return None
        (other,) = [v for v in users[0].operands if v is not value] or [value]
        if other.producer is None or other.producer.name != "core.constant":
            return None
        scale *= uniform_constant(other.producer)
        value = users[0].result
    return scale


def _epilogue(group: Group, width: int) -> tuple[tuple[Load, ...], tuple[Line, ...], str]:
    """What is computed of a looked-up row `acc`, sixteen lanes at a time."""
    printer = Printer(width, {group.ops("core.embedding")[0].result: "acc"})
    loads = []
    for arg in reachable(group.body.results, printer.known):
        load = load_argument(arg, width, lambda pointer: f"{pointer} + row * kWidth + col")
        printer.known[arg] = load.expression
        loads.append(load)
    value = printer.value(group.body.results[0])
    return tuple(loads), tuple(printer.lines), value


def _embedding_supports(group: Group, options: KernelOptions) -> Answer:
    op = group.ops("core.embedding")[0]
    if not _is_argument(*op.operands) or not group.is_weight(op.operands[0]):
        return Refusal("the table is no parameter, or the ids are computed inside the group")
    if tensor(op.operands[0]).dtype not in FORMATS or tensor(op.operands[1]).dtype != "i32":
        return Refusal(f"a table {op.operands[0].type} with ids {op.operands[1].type}")
    if len(group.body.results) != 1 or tensor(op.operands[1]).rank != 1:
        return Refusal("expected one result, and one id a token")
    width = row_elements(tensor(group.body.results[0]))
    if width != row_elements(tensor(op.result)):
        return Refusal(f"rows of {width} out of a table {op.operands[0].type}")
    try:
        _epilogue(group, width)
    except Unprintable as error:
        return Refusal(f"the epilogue: {error}")
    return Ok()


def _embedding_params(group: Group, options: KernelOptions, name: str) -> EmbeddingParams:
    table, ids = group.ops("core.embedding")[0].operands
    layout, dtype = _layout(group), tensor(table).dtype
    element = _DENSE[dtype] if layout == "rows" else dtype.upper()
    width, scale = row_elements(tensor(group.body.results[0])), _is_scale(group)
    loads, lines, value = _epilogue(group, width) if scale is None else ((), (), "acc")
    return EmbeddingParams(
        name, layout, element, table.index, ids.index, len(group.op.operands), width,
        literal(1.0 if scale is None else scale), loads, lines, value,
    )  # fmt: skip


def _embedding_weights(group: Group) -> tuple[WeightUse, ...]:
    table = group.ops("core.embedding")[0].operands[0].index
    vectors = (a.index for a in group.body.args if group.is_weight(a) and a.index != table)
    return (WeightUse(_layout(group), (table,)), *(WeightUse("vector", (i,)) for i in vectors))


EMBEDDING = KernelDef(
    name="embedding",
    summary="row look-up in a stored or packed table, and an element-wise epilogue",
    priority=10,
    matches=lambda group: len(group.ops("core.embedding")) == 1,
    supports=_embedding_supports,
    params=_embedding_params,
    template="embedding.cpp.j2",
    weights=_embedding_weights,
)


# -- rotary table
@dataclass(frozen=True)
class RopeTableParams:
    """Variables of `rope_table.cpp.j2`."""

    name: str
    inv_freq: tuple[str, ...]
    scale: str
    positions: int
    cos: int
    sin: int


def _rope_table_supports(group: Group, options: KernelOptions) -> Answer:
    op = group.ops("nn.rope_table")[0]
    positions, inv_freq = op.operands
    if not _is_argument(positions) or tensor(positions).dtype != "i32":
        return Refusal(f"positions %{positions.hint}: {positions.type} must be an i32 operand")
    if inv_freq.producer is None or inv_freq.producer.name != "core.constant":
        return Refusal("the frequencies are no constant")
    if len(group.body.ops) != 2 or set(group.body.results) - set(op.results):
        return Refusal("other ops beside the table")
    return Ok()


def _rope_table_params(group: Group, options: KernelOptions, name: str) -> RopeTableParams:
    op = group.ops("nn.rope_table")[0]
    constant = op.operands[1].producer
    assert constant is not None
    values = constant.attrs["values"]
    assert isinstance(values, tuple)
    at = {r: len(group.op.operands) + i for i, r in enumerate(group.body.results)}
    inv_freq = tuple(literal(v) for v in values if isinstance(v, float | int))
    return RopeTableParams(
        name, inv_freq, literal(float_attr(op, "scale")),
        op.operands[0].index, at[op.results[0]], at[op.results[1]],
    )  # fmt: skip


ROPE_TABLE = KernelDef(
    name="rope_table",
    summary="cosines and sines of the positions",
    priority=10,
    matches=lambda group: len(group.ops("nn.rope_table")) == 1,
    supports=_rope_table_supports,
    params=_rope_table_params,
    template="rope_table.cpp.j2",
    weights=lambda group: (),
)


# -- gather
@dataclass(frozen=True)
class GatherParams:
    """Variables of `gather.cpp.j2`."""

    name: str
    x: int
    indices: int
    y: int
    width: int


def _gather_supports(group: Group, options: KernelOptions) -> Answer:
    op = group.ops("core.gather_rows")[0]
    x, rows = (through_reshape(v) for v in op.operands)
    if not _is_argument(x, rows) or not has_rows(x.type) or tensor(x).dtype != "f32":
        return Refusal(f"gathers from {x.type}, expected float rows of another kernel")
    if tensor(rows).dtype != "i32" or len(group.body.results) != 1:
        return Refusal(f"row numbers of type {rows.type}, expected i32 and one result")
    if through_reshape(group.body.results[0]) is not op.result:
        return Refusal("other ops beside the gather")
    return Ok()


def _gather_params(group: Group, options: KernelOptions, name: str) -> GatherParams:
    x, rows = (through_reshape(v) for v in group.ops("core.gather_rows")[0].operands)
    return GatherParams(name, x.index, rows.index, len(group.op.operands), row_elements(tensor(x)))


GATHER = KernelDef(
    name="gather",
    summary="rows by number",
    priority=10,
    matches=lambda group: len(group.ops("core.gather_rows")) == 1,
    supports=_gather_supports,
    params=_gather_params,
    template="gather.cpp.j2",
    weights=lambda group: (),
)
