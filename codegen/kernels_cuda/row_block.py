"""Rows of one width in registers: each row is read once, 16 bytes at a time, and written once."""

from __future__ import annotations

from dataclasses import dataclass, replace

from inferc.codegen.expressions import Line, Load, Unprintable, load_argument
from inferc.codegen.group import Group, has_rows, row_elements, tensor
from inferc.codegen.kernel import KernelOptions, supports_what_prints
from inferc.codegen.kernels import plain_row
from inferc.codegen.kernels.linear import Store
from inferc.codegen.kernels.plain_row import Reduction
from inferc.ir.core import Value

_COLUMNS = 4
_WARP = 32
_ROWS_OF_A_BLOCK = 4
_THREADS_OF_A_PART = 256
_MOST_ITEMS = 2
_REGISTERS, _OTHER_REGISTERS = 65536, 16


@dataclass(frozen=True)
class RowBlockParams:
    """Variables of `row_block.cu.j2`.

    `by_row`: operands that have a row each; `early`: parameters, read before the kernel ahead ends.
    """

    name: str
    width: int
    threads: int
    items: int
    rows: int
    parts: int
    by_row: tuple[int, ...]
    early: tuple[int, ...]
    loads: tuple[Load, ...]
    reductions: tuple[Reduction, ...]
    lines: tuple[Line, ...]
    stores: tuple[Store, ...]


def _load(arg: Value, width: int) -> Load:
    load = load_argument(arg, width, lambda pointer: pointer)
    single = row_elements(tensor(arg)) == 1 and width != 1
    return replace(load, expression=load.name if single else f"{load.name}[j]")


def _params(group: Group, options: KernelOptions, name: str) -> RowBlockParams:
    plain = plain_row.plain_row(group, name, _load)
    if plain.width % _COLUMNS:
        raise Unprintable(f"rows of {plain.width} elements, which is no multiple of {_COLUMNS}")
    threads, items, rows, parts = _shape(plain.width // _COLUMNS, whole=bool(plain.reductions))
    arrays = sum(load.expression.endswith("[j]") for load in plain.loads)
    wanted = arrays * items * _COLUMNS + _OTHER_REGISTERS
    if wanted * threads * rows > _REGISTERS:
        raise Unprintable(f"{arrays} rows of {plain.width} elements want {wanted} registers")
    by_row = tuple(a.index for a in group.body.args if has_rows(a.type))
    early = tuple(a.index for a in group.body.args if group.is_weight(a))
    return RowBlockParams(
        name, plain.width, threads, items, rows, parts, by_row, early, plain.loads,
        plain.reductions, plain.lines, plain.stores,
    )  # fmt: skip


def _shape(runs: int, *, whole: bool) -> tuple[int, int, int, int]:
    """Threads of a row, runs of four columns each, rows of a block, blocks of a row.

    Where nothing is reduced, blocks share a row.
    """
    if not whole and runs >= _THREADS_OF_A_PART:
        return _THREADS_OF_A_PART, 1, 1, -(-runs // _THREADS_OF_A_PART)
    threads = _WARP
    while threads < 512 and runs > threads * _MOST_ITEMS:
        threads *= 2
    if runs > threads * 2 * _MOST_ITEMS:
        threads *= 2
    return threads, -(-runs // threads), _ROWS_OF_A_BLOCK if threads == _WARP else 1, 1


ROW_BLOCK = replace(
    plain_row.PLAIN_ROW,
    name="row_block",
    summary="element-wise ops and row reductions, rows in registers",
    priority=2,
    supports=supports_what_prints(_params),
    params=_params,
    template="row_block.cu.j2",
    instructions={"": ("LDG.E.128", "STG.E.128")},
)
