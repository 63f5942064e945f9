"""Rows of any form: the threads of a block share the loops over a row."""

from __future__ import annotations

from dataclasses import dataclass, replace

from inferc.codegen.cuda_row_loops import RowLoops
from inferc.codegen.group import Group
from inferc.codegen.kernel import KernelOptions, supports_what_prints
from inferc.codegen.kernels import row_loops
from inferc.codegen.row_loops import Pointer

_LEAST_THREADS, _MOST_THREADS = 32, 512
_ELEMENTS_OF_A_THREAD = 4
_THREADS_OF_A_PART = 256


@dataclass(frozen=True)
class RowLoopsParams:
    """Variables of `row_loops.cu.j2`."""

    name: str
    threads: int
    parts: int
    inputs: tuple[Pointer, ...]
    outputs: tuple[Pointer, ...]
    constants: tuple[str, ...]
    shared: tuple[str, ...]
    statements: tuple[str, ...]


def _params(group: Group, options: KernelOptions, name: str) -> RowLoopsParams:
    operands = len(group.op.operands)
    threads, parts = _shape(RowLoops.of(group.body, operands))
    loops = RowLoops.of(group.body, operands, threads)
    return RowLoopsParams(
        name, threads, parts, tuple(loops.inputs), tuple(loops.outputs), tuple(loops.constants),
        tuple(loops.shared), tuple(loops.statements),
    )  # fmt: skip


def _shape(loops: RowLoops) -> tuple[int, int]:
    """Threads of a block, and blocks of a row."""
    wanted = -(-loops.widest // _ELEMENTS_OF_A_THREAD)
    threads = _LEAST_THREADS
    while threads < min(wanted, _MOST_THREADS):
        threads *= 2
    if not loops.splits or threads < _THREADS_OF_A_PART:
        return threads, 1
    return _THREADS_OF_A_PART, -(-wanted // _THREADS_OF_A_PART)


ROW_LOOPS = replace(
    row_loops.ROW_LOOPS,
    summary="element-wise ops, reductions and selection, loops that a block shares",
    supports=supports_what_prints(_params),
    params=_params,
    template="row_loops.cu.j2",
)
