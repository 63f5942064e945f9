"""Matrix products for CUDA: packed weights on tensor cores, an element-wise epilogue."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace

from inferc.codegen.group import Group, tensor
from inferc.codegen.kernel import KernelOptions, Scratch
from inferc.codegen.kernels import linear
from inferc.codegen.kernels.linear import LinearParams
from inferc.codegen.targets import CudaTarget
from inferc.ir.dims import evaluate


def activation_terms(weight: str, options: KernelOptions) -> int:
    """bf16 terms that stand for an activation: 3 are exact, 1 rounds it.

    Weights of float32 are there to be multiplied as such, unless `compute` says otherwise.
    """
    exact = options.compute == "f32" or (options.compute == "auto" and weight == "f32")
    return 3 if exact else 1


@dataclass(frozen=True)
class CudaLinearParams(LinearParams):
    """Variables of `linear.cu.j2`: `math` is the number of terms, `fast` lets wgmma in."""

    fast: bool


def _params(group: Group, options: KernelOptions, name: str) -> CudaLinearParams:
    params: LinearParams = linear.LINEAR.params(group, options, name)
    weight = tensor(group.ops("core.linear")[0].operands[1]).dtype
    fields = {f.name: getattr(params, f.name) for f in dataclasses.fields(params)}
    fields["math"] = str(activation_terms(weight, options))
    return CudaLinearParams(**fields, fast=options.fast_prefill)


# Weights without scales may go through wgmma on sm_90 (kWgmma of gemm_wgmma.cuh).
WGMMA_FORMATS = ("bf16", "f16", "f8e4m3", "i8")
_IMAGE_TOKENS, _IMAGE_K, _IMAGE_BYTES = 64, 64, 64 * 64 * 2


def most_rows(group: Group) -> int:
    """Rows of a group's first result at most."""
    highest = {name: symbol.high for name, symbol in group.func.symbols.items()}
    return evaluate(tensor(group.op.results[0]).shape[0], highest)


def _scratch(group: Group, options: KernelOptions) -> Scratch:
    """The images of x in bf16 that sm_90 reads; the last block of 192 tokens has them all."""
    w = tensor(group.ops("core.linear")[0].operands[1])
    assert isinstance(options.target, CudaTarget)
    is_sm90 = any(arch.sm == 90 for arch in options.target.archs)
    if (
        not options.fast_prefill
        or not is_sm90
        or w.dtype not in WGMMA_FORMATS
        or activation_terms(w.dtype, options) != 1
    ):
        return Scratch()
    k = w.shape[1]
    assert isinstance(k, int)
    images = (-(-most_rows(group) // _IMAGE_TOKENS) + 2) * -(-k // _IMAGE_K)
    return Scratch(shared=str(images * _IMAGE_BYTES))


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
        scratch=_scratch,
        kernels=("_decode", "_skinny", "_round", "_many", "_more"),
        instructions=INSTRUCTIONS,
    )
    for definition in (linear.LINEAR, linear.GLU_LINEAR)
)
