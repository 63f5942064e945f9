"""What a kernel definition is: when it fits a group, what it bakes in, what it costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from inferc.codegen.expressions import Unprintable
from inferc.codegen.group import Group
from inferc.codegen.targets import Target
from inferc.ir.cost import Cost, op_cost

Compute = Literal["auto", "f32", "bf16", "int16", "int8"]
PrefillPrecision = Literal["auto", "f32", "int16", "int8"]
Phase = Literal["prefill", "decode"]


@dataclass(frozen=True)
class KernelOptions:
    """Choices that decide which kernels may be used.

    Attributes:
        target: the CPU or the GPUs to compile for.
        compute: arithmetic of matrix products; `auto` follows the weights' type.
        use_tvm: whether row kernels may be lowered by TVM.
        fast_prefill: CUDA: products and attention of many rows may have other bits than of few.
        prefill_precision: CPU: arithmetic of products in `@prefill`; `auto` is that of `compute`.
    """

    target: Target
    compute: Compute = "auto"
    use_tvm: bool = True
    fast_prefill: bool = False
    prefill_precision: PrefillPrecision = "auto"


@dataclass(frozen=True)
class Ok:
    """The kernel fits."""


@dataclass(frozen=True)
class Refusal:
    """The kernel does not fit, and why."""

    reason: str


Answer = Ok | Refusal


def supports_what_prints(
    params: Callable[[Group, KernelOptions, str], Any],
) -> Callable[[Group, KernelOptions], Answer]:
    """`supports` of a kernel that fits every group for which its `params` finds expressions."""

    def supports(group: Group, options: KernelOptions) -> Answer:
        try:
            params(group, options, "probe")
        except Unprintable as error:
            return Refusal(str(error))
        return Ok()

    return supports


Layout = Literal["n16", "n16_pair", "experts", "experts_pair", "rows", "vector"]


@dataclass(frozen=True)
class WeightUse:
    """How a kernel wants the weight behind group operands. A pair is two operands, one tensor."""

    layout: Layout
    operands: tuple[int, ...]


@dataclass(frozen=True)
class Scratch:
    """C++ expressions for bytes of working memory; `workers` may be used in `shared`.

    For CUDA `shared` is a number: device memory of one call.
    """

    per_worker: str = "0"
    shared: str = "0"


@dataclass(frozen=True)
class KernelDef:
    """One kernel family.

    Attributes:
        name: prefix of the function's name.
        summary: one line for reports and errors.
        priority: the highest that fits wins; two that fit must differ.
        matches: cheap test of the body's form; no match is not worth a refusal.
        supports: whether it fits, with the reason if not. Called only if it matches.
        params: what the template needs: a frozen dataclass whose fields are its variables.
        template: file below `templates/cpu` or `templates/cuda`.
        weights: layouts wanted for weight operands.
        scratch: working memory of one call.
        tolerance: relative error against the body that its tests allow.
        own_rows: CPU: whether it takes neither scratch nor state, so that each worker may compute
            all rows for itself.
        lowered: whether TVM makes an object for the body beside the template's wrapper.
        cost: flops and bytes of one call; by default those of the body and of its boundary.
        arithmetic: type of the operands of its products, where they are not multiplied as stored.
        kernels: CUDA: what is behind the unit's name in the names of its `__global__` functions.
        instructions: CUDA: what the machine code of an architecture must contain, in nvdisasm's
            spelling; the empty name stands for all architectures.
    """

    name: str
    summary: str
    priority: int
    matches: Callable[[Group], bool]
    supports: Callable[[Group, KernelOptions], Answer]
    params: Callable[[Group, KernelOptions, str], Any]
    template: str
    weights: Callable[[Group], tuple[WeightUse, ...]]
    scratch: Callable[[Group, KernelOptions], Scratch] = lambda group, options: Scratch()
    tolerance: float = 1e-5
    own_rows: bool = False
    lowered: bool = False
    cost: Callable[[Group], Cost] = lambda group: op_cost(group.op)
    arithmetic: Callable[[Group, KernelOptions], str | None] = lambda group, options: None
    kernels: tuple[str, ...] = ("",)
    instructions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
