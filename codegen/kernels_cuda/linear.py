"""Matrix products for CUDA: packed weights on tensor cores, an element-wise epilogue."""

from __future__ import annotations

from dataclasses import replace

from inferc.codegen.group import Group, tensor
from inferc.codegen.kernel import KernelOptions, Scratch
from inferc.codegen.kernels import linear
from inferc.codegen.kernels.linear import LinearParams


def activation_terms(weight: str, options: KernelOptions) -> int:
    """bf16 terms that stand for an activation: 3 are exact, 1 rounds it.

    Weights of float32 are there to be multiplied as such, unless `compute` says otherwise.
    """
    exact = options.compute == "f32" or (options.compute == "auto" and weight == "f32")
    return 3 if exact else 1


def _params(group: Group, options: KernelOptions, name: str) -> LinearParams:
    params: LinearParams = linear.LINEAR.params(group, options, name)
    weight = tensor(group.ops("core.linear")[0].operands[1]).dtype
    return replace(params, math=str(activation_terms(weight, options)))


# How weights come to shared memory, and what multiplies.
INSTRUCTIONS = {
    "": ("HMMA",),
    **dict.fromkeys(("sm_80", "sm_86", "sm_89"), ("LDGSTS",)),
    **dict.fromkeys(("sm_90a", "sm_100a", "sm_120a"), ("UBLKCP",)),
}

LINEAR, GLU_LINEAR = (
    replace(
        definition,
        params=_params,
        template="linear.cu.j2",
        scratch=lambda group, options: Scratch(),
        kernels=("_decode", "_skinny", "_prefill"),
        instructions=INSTRUCTIONS,
    )
    for definition in (linear.LINEAR, linear.GLU_LINEAR)
)
