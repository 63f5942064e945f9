"""All kernel definitions, and the choice among them."""

from __future__ import annotations

from inferc.codegen.group import Group
from inferc.codegen.kernel import KernelDef, KernelOptions, Refusal
from inferc.codegen.kernels.attention import ATTENTION
from inferc.codegen.kernels.experts import EXPERTS
from inferc.codegen.kernels.head_linear import HEAD_LINEAR
from inferc.codegen.kernels.latent_append import LATENT_APPEND
from inferc.codegen.kernels.linear import GLU_LINEAR, LINEAR
from inferc.codegen.kernels.plain_row import PLAIN_ROW
from inferc.codegen.kernels.rope_append import ROPE_APPEND
from inferc.codegen.kernels.row_loops import ROW_LOOPS
from inferc.codegen.kernels.rows import EMBEDDING, GATHER, ROPE_TABLE
from inferc.codegen.kernels.state import STATE
from inferc.codegen.kernels.take import TAKE
from inferc.codegen.kernels.tvm_row import TVM_ROW
from inferc.codegen.kernels_cuda import attention as cuda_attention
from inferc.codegen.kernels_cuda import experts as cuda_experts
from inferc.codegen.kernels_cuda import head_linear as cuda_head_linear
from inferc.codegen.kernels_cuda import latent_append as cuda_latent_append
from inferc.codegen.kernels_cuda import linear as cuda_linear
from inferc.codegen.kernels_cuda import rope_append as cuda_rope_append
from inferc.codegen.kernels_cuda import rows as cuda_rows
from inferc.codegen.kernels_cuda import state as cuda_state
from inferc.errors import CompileError
from inferc.ir.text import print_func

KERNELS: tuple[KernelDef, ...] = (
    LINEAR, GLU_LINEAR, ROPE_APPEND, ATTENTION, EMBEDDING, ROPE_TABLE, GATHER, TAKE, STATE,
    EXPERTS, HEAD_LINEAR, LATENT_APPEND, TVM_ROW, PLAIN_ROW, ROW_LOOPS,
)  # fmt: skip
CUDA_KERNELS: tuple[KernelDef, ...] = (
    *cuda_rows.KERNELS, cuda_state.STATE, cuda_linear.LINEAR, cuda_linear.GLU_LINEAR,
    cuda_attention.ATTENTION, cuda_attention.FAST_ATTENTION, cuda_attention.PLAIN_ATTENTION,
    cuda_latent_append.LATENT_APPEND,
    cuda_rope_append.ROPE_APPEND,
    cuda_experts.EXPERTS, cuda_head_linear.HEAD_LINEAR,
)  # fmt: skip
_OF_KIND = {"cpu": KERNELS, "cuda": CUDA_KERNELS}
_BY_NAME = {(kind, d.name): d for kind, kernels in _OF_KIND.items() for d in kernels}


def kernel_named(name: str, kind: str = "cpu") -> KernelDef:
    """The definition of a name that `choose` gave for a target of a kind."""
    return _BY_NAME[kind, name]


def choose(group: Group, options: KernelOptions) -> KernelDef:
    """The fitting definition of highest priority. Raises CompileError with every refusal."""
    refusals: list[tuple[KernelDef, str]] = []
    fitting: list[KernelDef] = []
    for definition in _OF_KIND[options.target.kind]:
        if not definition.matches(group):
            continue
        answer = definition.supports(group, options)
        if isinstance(answer, Refusal):
            refusals.append((definition, answer.reason))
        else:
            fitting.append(definition)
    if not fitting:
        raise CompileError(_nothing_fits(group, options.target.kind, refusals))
    best = max(fitting, key=lambda d: d.priority)
    rivals = [d.name for d in fitting if d.priority == best.priority]
    if len(rivals) > 1:
        raise ValueError(f"kernels {', '.join(rivals)} fit one group with the same priority")
    return best


def _nothing_fits(group: Group, kind: str, refusals: list[tuple[KernelDef, str]]) -> str:
    where = ", ".join(group.modules) or "no source module"
    tried = [f"  {d.name}: {reason}" for d, reason in refusals]
    others = sorted(d.name for d in _OF_KIND[kind] if d not in [r for r, _ in refusals])
    lines = [
        f"No kernel fits a group of @{group.func.name} (from {where}).",
        *(tried or ["  no kernel has this form"]),
        f"  of another form: {', '.join(others)}",
        "The group:",
        print_func(group.body).rstrip(),
    ]
    return "\n".join(lines)
