"""Element-wise chains and row reductions, lowered by TVM; the wrapper hands out shares of rows."""

from __future__ import annotations

from dataclasses import dataclass

from inferc.codegen import row_program
from inferc.codegen.group import Group
from inferc.codegen.kernel import Answer, KernelDef, KernelOptions, Ok, Refusal, WeightUse
from inferc.codegen.row_program import RowArgument
from inferc.ir.ops.recurrent import SERVED

OPAQUE = frozenset(
    {
        "serve.kv_append", "serve.k_append", "nn.head_linear",
        "serve.paged_attention", "core.linear", "core.embedding", "nn.experts",
        *SERVED,
    }
)  # fmt: skip
SELECTION = frozenset({"core.topk", "core.take_along", "core.put_along"})


@dataclass(frozen=True)
class TvmRowParams:
    """Variables of `tvm_row.cpp.j2`."""

    name: str
    function: str
    arguments: tuple[RowArgument, ...]


def has_row_form(group: Group) -> bool:
    """Whether the body is worth asking a row kernel about."""
    return not any(op.name in OPAQUE for op in group.body.ops)


def has_plain_row_form(group: Group) -> bool:
    """The same without selection by value or index."""
    return has_row_form(group) and not any(op.name in SELECTION for op in group.body.ops)


def vectors(group: Group) -> tuple[WeightUse, ...]:
    """All parameters of a row kernel are float32 vectors."""
    return tuple(WeightUse("vector", (a.index,)) for a in group.body.args if group.is_weight(a))


def _supports(group: Group, options: KernelOptions) -> Answer:
    if not options.use_tvm:
        return Refusal("TVM is switched off or not installed")
    reason = row_program.refusal(group.body)
    return Ok() if reason is None else Refusal(reason)


def _params(group: Group, options: KernelOptions, name: str) -> TvmRowParams:
    arguments = row_program.row_arguments(group.body, len(group.op.operands))
    return TvmRowParams(name, f"{name}_rows", arguments)


TVM_ROW = KernelDef(
    name="row",
    summary="element-wise ops and row reductions, lowered by TVM",
    priority=2,
    matches=has_plain_row_form,
    supports=_supports,
    params=_params,
    template="tvm_row.cpp.j2",
    weights=vectors,
    own_rows=True,
    lowered=True,
)
