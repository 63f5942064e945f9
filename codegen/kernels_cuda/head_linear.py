"""A matrix product for each head, for CUDA."""

from __future__ import annotations

from dataclasses import replace

from inferc.codegen.group import Group, tensor
from inferc.codegen.kernel import KernelOptions, Scratch
from inferc.codegen.kernels import head_linear
from inferc.codegen.kernels.head_linear import HeadLinearParams
from inferc.codegen.kernels_cuda.linear import activation_terms


def _params(group: Group, options: KernelOptions, name: str) -> HeadLinearParams:
    """`math` is the number of bf16 terms that stand for an activation."""
    given: HeadLinearParams = head_linear.HEAD_LINEAR.params(group, options, name)
    weight = tensor(group.ops("nn.head_linear")[0].operands[1]).dtype
    return replace(given, math=str(activation_terms(weight, options)))


HEAD_LINEAR = replace(
    head_linear.HEAD_LINEAR,
    template="head_linear.cu.j2",
    params=_params,
    scratch=lambda group, options: Scratch(),
    kernels=("_few", "_some", "_many", "_beside"),
)
