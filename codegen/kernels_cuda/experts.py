"""Mixtures of experts for CUDA: lists by expert, grouped products, sums in order of the choices."""

from __future__ import annotations

from dataclasses import replace

from inferc.codegen.group import Group, static_size
from inferc.codegen.kernel import Answer, KernelOptions, Refusal, Scratch
from inferc.codegen.kernels import experts
from inferc.codegen.kernels.experts import ExpertsParams
from inferc.codegen.kernels_cuda.linear import INSTRUCTIONS, activation_terms, most_rows

_MOST_EXPERTS = 1024  # kMostExperts of experts_lists.cuh
_LIST_THREADS = 512
_ALIGNMENT_BYTES = 256


def _supports(group: Group, options: KernelOptions) -> Answer:
    count = static_size(group.ops("nn.experts")[0].operands[3], 0)
    if count > _MOST_EXPERTS:
        return Refusal(f"{count} experts; lists are made for up to {_MOST_EXPERTS}")
    return experts.EXPERTS.supports(group, options)


def _params(group: Group, options: KernelOptions, name: str) -> ExpertsParams:
    """`up_math` and `down_math` are numbers of bf16 terms that stand for an activation."""
    given: ExpertsParams = experts.EXPERTS.params(group, options, name)
    up, down = (
        str(activation_terms(weight.lower(), options))
        for weight in (given.up_format, given.down_format)
    )
    return replace(given, up_math=up, down_math=down)


def _scratch(group: Group, options: KernelOptions) -> Scratch:
    """What `place_experts_scratch` lays out."""
    p = experts.EXPERTS.params(group, options, "")
    pairs = most_rows(group) * p.chosen
    chunks = -(-pairs // _LIST_THREADS)
    words = (4 * pairs, chunks * p.experts, pairs, pairs, pairs * p.inner, pairs * p.hidden)
    return Scratch(shared=str(sum(-(-4 * n // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES for n in words)))


EXPERTS = replace(
    experts.EXPERTS,
    template="experts.cu.j2",
    supports=_supports,
    params=_params,
    scratch=_scratch,
    kernels=(
        "_counts", "_places", "_up_few", "_down_few", "_up_some", "_down_some", "_up_many",
        "_down_many", "_sum",
    ),
    instructions=INSTRUCTIONS,
)  # fmt: skip
