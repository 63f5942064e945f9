"""Attention for CUDA: on tensor cores for 16-bit pages, and in float32 for all else."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace

import numpy as np

from inferc.codegen.expressions import literal
from inferc.codegen.group import Group, cache_type, row_elements, tensor, through_reshape
from inferc.codegen.kernel import Answer, KernelOptions, Refusal, Scratch
from inferc.codegen.kernels import attention
from inferc.codegen.kernels.attention import AttentionParams
from inferc.codegen.targets import CudaTarget
from inferc.ir.cost import Cost, op_cost
from inferc.ir.dims import Size, bounds
from inferc.ir.ops.serve import context_size
from inferc.ir.types import CacheType

_MOST_PARTIAL_BYTES = 32 << 20
_LEAST_SHARED_BYTES = 99 << 10  # that a block may have on any architecture
_MOST_SLOPES = 960  # 4 KB of kernel arguments


@dataclass(frozen=True)
class CudaAttentionParams(AttentionParams):
    """Variables of `attention.cu.j2`: of the CPU's template, and `partial_bytes` of scratch.

    `fast` lets wgmma in where a step has many rows.
    """

    tensor_cores: bool
    fast: bool
    partial_bytes: int


def _cache(group: Group) -> CacheType:
    return cache_type(group.ops("serve.paged_attention")[0].operands[1])


def _high(group: Group, size: Size) -> int:
    return size if isinstance(size, int) else bounds(size, group.func.symbols)[1]


def _partial_bytes(group: Group) -> int:
    """Room for every partition of every row, at most 32 MiB: what needs more is not split.

    The sizes are those of `AttentionSizes` in `attention.cuh`.
    """
    op, cache = group.ops("serve.paged_attention")[0], _cache(group)
    assert cache.page_tokens is not None
    tokens, pages = (
        _high(group, tensor(group.operand(through_reshape(v))).shape[axis])
        for v, axis in ((op.operands[0], 0), (op.operands[5], 1))
    )
    heads, row_bytes, partition_tokens = _partial_sizes(group)
    partitions = -(-pages * cache.page_tokens // partition_tokens)
    if partitions == 1:
        return 0
    return min(tokens * heads * partitions * row_bytes, _MOST_PARTIAL_BYTES)


def _partial_sizes(group: Group) -> tuple[int, int, int]:
    """Heads, bytes of a head's partial, and tokens of a partition."""
    op, cache = group.ops("serve.paged_attention")[0], _cache(group)
    heads = row_elements(tensor(op.operands[0])) // cache.k_dim
    row_bytes = 4 * (-(-cache.v_dim // 4) * 4 + 4)
    return heads, row_bytes, 384 if cache.page_tokens == 48 else 512


def _params(
    group: Group, options: KernelOptions, name: str, tensor_cores: bool, fast: bool = False
) -> CudaAttentionParams:
    common = attention.ATTENTION.params(group, options, name)
    fields = {f.name: getattr(common, f.name) for f in dataclasses.fields(common)}
    attrs = group.ops("serve.paged_attention")[0].attrs
    # nvcc warns of a literal with more digits than it keeps.
    for field in ("scale", "softcap"):
        value = attrs[field]
        fields[field] = literal(float(np.float32(value if isinstance(value, float) else 0.0)))
    return CudaAttentionParams(
        **fields, tensor_cores=tensor_cores, fast=fast, partial_bytes=_partial_bytes(group)
    )


def _supports(group: Group, options: KernelOptions) -> Answer:
    answer = attention.ATTENTION.supports(group, options)
    if isinstance(answer, Refusal):
        return answer
    op, cache = group.ops("serve.paged_attention")[0], _cache(group)
    if float(str(op.attrs["scale"])) == 0.0:
        return Refusal("scores of scale 0")
    if 4 * 16 * (cache.k_dim + cache.v_dim + 34) > _LEAST_SHARED_BYTES:
        return Refusal(
            f"keys of {cache.k_dim} and values of {cache.v_dim} do not fit shared memory"
        )
    alibi = op.attrs["alibi"] or ()
    if len(alibi) > _MOST_SLOPES:  # type: ignore[arg-type]
        return Refusal(f"slopes of more than {_MOST_SLOPES} heads")
    return answer


def _supports_mma(group: Group, options: KernelOptions) -> Answer:
    answer = _supports(group, options)
    if isinstance(answer, Refusal):
        return answer
    cache = _cache(group)
    if cache.dtype == "f32":
        return Refusal("pages of f32: tensor cores multiply bf16 and f16, which bytes become")
    if options.compute == "f32":
        return Refusal("float32 arithmetic is asked for")
    if cache.k_dim % 16 or cache.v_dim % 16:
        return Refusal(f"heads of {cache.k_dim} and {cache.v_dim} are no multiples of 16")
    if cache.v_dim > 512 or _smallest_tile_bytes(cache) > _LEAST_SHARED_BYTES:
        return Refusal(f"tiles of keys of {cache.k_dim} and values of {cache.v_dim} do not fit")
    return answer


def _supports_wgmma(group: Group, options: KernelOptions) -> Answer:
    """Shapes of `WgmmaTiling` in `attention_wgmma.cuh`."""
    answer = _supports_mma(group, options)
    if isinstance(answer, Refusal):
        return answer
    assert isinstance(options.target, CudaTarget)
    if not options.fast_prefill or group.func.name != "prefill":
        return Refusal("it is for prefill whose bits may depend on the rows of a step")
    if all(arch.sm != 90 for arch in options.target.archs):
        return Refusal("wgmma is an instruction of sm_90a")
    cache = _cache(group)
    if cache.dtype != "bf16" or cache.v_in_k or cache.page_tokens not in (16, 32, 64):
        return Refusal("pages are not keys and values of bf16, 16, 32 or 64 tokens each")
    if not {cache.k_dim, cache.v_dim} <= {64, 128}:
        return Refusal(f"heads of {cache.k_dim} and {cache.v_dim} are not of 64 or 128")
    return answer


def _smallest_tile_bytes(cache: CacheType) -> int:
    """Shared memory of prefill with 16 keys a tile: `AttentionTiling` in `attention_tiles.cuh`."""
    rows, key_warps = (128, 1) if cache.v_dim <= 128 else (64, 1) if cache.v_dim <= 256 else (32, 4)
    values = 0 if cache.v_in_k else cache.v_dim
    stage = 2 * (cache.k_dim * 24 + 16 * (values + 8))
    if cache.dtype in ("f8e4m3", "i8"):  # copies of two stages, and one as it is multiplied
        stages = stage + 2 * 16 * (cache.k_dim + values)
    else:
        stages = 2 * stage
    rest = rows * (32 if key_warps == 1 else 48 + 4 * key_warps)
    if cache.dtype == "i8":  # scales, and shares once more
        rest += 3 * 4 * 16 * (1 if cache.v_in_k else 2) + (0 if key_warps == 1 else 48 * rows)
    return 2 * rows * (cache.k_dim + 8) + stages + rest


def _cost(group: Group) -> Cost:
    """With what decode writes and reads again of its partitions, as if it were always split.

    Prefill joins partitions in `out` while that is in the L2 cache.
    """
    cost, op = op_cost(group.op), group.ops("serve.paged_attention")[0]
    if group.func.name != "decode":
        return cost
    heads, row_bytes, partition_tokens = _partial_sizes(group)
    rows = tensor(group.operand(through_reshape(op.operands[0]))).shape[0]
    # A partition that is begun counts by its tokens.
    limits = [w for w in (op.attrs["window"], op.attrs["chunk"]) if isinstance(w, int)]
    each = -(-heads * row_bytes // partition_tokens)
    moved = rows * context_size(min(limits, default=None)) * each
    return cost + Cost(0, moved, moved)


ATTENTION = replace(
    attention.ATTENTION,
    summary="paged attention with grouped heads on tensor cores",
    priority=20,
    supports=_supports_mma,
    params=lambda group, options, name: _params(group, options, name, True),
    template="attention.cu.j2",
    scratch=lambda group, options: Scratch(shared=str(_partial_bytes(group))),
    kernels=("", "_merge"),
    cost=_cost,
    instructions={"": ("HMMA.16816.F32", "LDSM", "LDGSTS.128")},
)
FAST_ATTENTION = replace(
    ATTENTION,
    name="attention_wgmma",
    summary="paged attention with grouped heads, by wgmma where a step has many rows",
    priority=30,
    supports=_supports_wgmma,
    params=lambda group, options, name: _params(group, options, name, True, fast=True),
    kernels=("", "_merge", "_fast"),
    instructions={**ATTENTION.instructions, "sm_90a": ("HGMMA",)},
)
PLAIN_ATTENTION = replace(
    ATTENTION,
    name="attention_plain",
    summary="paged attention with grouped heads in float32",
    priority=10,
    supports=_supports,
    params=lambda group, options, name: _params(group, options, name, False),
    instructions={},
)
