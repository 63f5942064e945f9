"""Small rows as loops over arrays: routers, and what no other row kernel takes."""

from __future__ import annotations

from dataclasses import dataclass

from inferc.codegen.group import Group
from inferc.codegen.kernel import KernelDef, KernelOptions, supports_what_prints
from inferc.codegen.kernels.tvm_row import has_row_form, vectors
from inferc.codegen.row_loops import Pointer, RowLoops


@dataclass(frozen=True)
class RowLoopsParams:
    """Variables of `row_loops.cpp.j2`."""

    name: str
    inputs: tuple[Pointer, ...]
    outputs: tuple[Pointer, ...]
    statements: tuple[str, ...]


def _params(group: Group, options: KernelOptions, name: str) -> RowLoopsParams:
    loops = RowLoops.of(group.body, len(group.op.operands))
    return RowLoopsParams(name, tuple(loops.inputs), tuple(loops.outputs), tuple(loops.statements))


ROW_LOOPS = KernelDef(
    name="row_loops",
    summary="small rows as loops over arrays, with selection by value and index",
    priority=0,
    matches=has_row_form,
    supports=supports_what_prints(_params),
    params=_params,
    template="row_loops.cpp.j2",
    weights=vectors,
)
