"""Row kernels in plain C++, for use without TVM: one loop over the columns for each reduction.

Slower than the TVM kernel where a row is read several times, and only for rows of one width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from inferc.codegen.decompose import decompose
from inferc.codegen.expressions import (
    Line,
    Load,
    Printer,
    Unprintable,
    load_argument,
    reachable,
)
from inferc.codegen.group import Group, has_rows, row_elements, tensor
from inferc.codegen.kernel import KernelDef, KernelOptions, supports_what_prints
from inferc.codegen.kernels.linear import Store
from inferc.codegen.kernels.tvm_row import has_plain_row_form, vectors
from inferc.codegen.row_program import REDUCTIONS
from inferc.ir.core import Func, Op, Value


@dataclass(frozen=True)
class Reduction:
    """`name` = `finish` of the `join` of `value` over all columns; `fill` changes nothing."""

    name: str
    lines: tuple[Line, ...]
    value: str
    fill: str
    join: str
    finish: str


@dataclass(frozen=True)
class PlainRowParams:
    """Variables of `plain_row.cpp.j2`."""

    name: str
    width: int
    loads: tuple[Load, ...]
    reductions: tuple[Reduction, ...]
    lines: tuple[Line, ...]
    stores: tuple[Store, ...]


def _width(body: Func) -> int:
    widths = {row_elements(tensor(r)) for r in body.results}
    if len(widths) != 1 or any(not has_rows(r.type) for r in body.results):
        raise Unprintable("results of different widths")
    return widths.pop()


def _params(group: Group, options: KernelOptions, name: str) -> PlainRowParams:
    return plain_row(group, name, _load)


def _load(arg: Value, width: int) -> Load:
    return load_argument(arg, width, lambda pointer: f"{pointer} + row * kWidth + col")


def plain_row(group: Group, name: str, load_of: Callable[[Value, int], Load]) -> PlainRowParams:
    """What a group computes, an argument being read as `load_of` says. Raises Unprintable."""
    body = decompose(group.body)
    width = _width(body)
    known: dict[Value, str] = {}
    loads: list[Load] = []
    for arg in reachable(body.results, {}):
        load = load_of(arg, width)
        known[arg] = load.expression
        loads.append(load)
    reductions: list[Reduction] = []
    for op in body.ops:
        if op.name in REDUCTIONS:
            reductions.append(_reduction(op, width, known, f"r{len(reductions)}"))
            known[op.result] = reductions[-1].name
    printer = Printer(width, dict(known))
    inputs = len(group.op.operands)
    stores = tuple(Store(f"y{i}", inputs + i, printer.value(r)) for i, r in enumerate(body.results))
    return PlainRowParams(
        name, width, tuple(loads), tuple(reductions), tuple(printer.lines), stores
    )


def _reduction(op: Op, width: int, known: dict[Value, str], name: str) -> Reduction:
    x = tensor(op.operands[0])
    if x.rank != 2 or x.shape[1] != width or op.attrs["axes"] not in ((1,), (-1,)):
        raise Unprintable(f"{op.name} of {x} over {op.attrs['axes']}")
    printer = Printer(width, dict(known))
    value = printer.value(op.operands[0])
    lines = tuple(printer.lines)
    if op.name == "core.amax":
        fill, join, finish = "-__builtin_inff()", f"max({name}, value)", f"reduce_max({name})"
        return Reduction(name, lines, value, fill, join, finish)
    finish = f"reduce_add({name})" + (f" / {float(width)}f" if op.name == "core.mean" else "")
    return Reduction(name, lines, value, "0.0f", f"{name} + value", finish)


PLAIN_ROW = KernelDef(
    name="plain_row",
    summary="element-wise ops and row reductions in C++",
    priority=1,
    matches=has_plain_row_form,
    supports=supports_what_prints(_params),
    params=_params,
    template="plain_row.cpp.j2",
    weights=vectors,
    own_rows=True,
)
