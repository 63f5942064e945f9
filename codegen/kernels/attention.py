"""Attention of new tokens over the pages of their sequences: one kernel a phase, the same bits."""

from __future__ import annotations

from dataclasses import dataclass

from inferc.codegen.expressions import literal
from inferc.codegen.group import (
    Group,
    cache_type,
    float_attr,
    int_attr,
    row_elements,
    tensor,
    through_reshape,
)
from inferc.codegen.kernel import (
    Answer,
    KernelDef,
    KernelOptions,
    Ok,
    Refusal,
    Scratch,
    WeightUse,
)
from inferc.codegen.kernels.rope_append import PAGE_ELEMENTS
from inferc.ir.core import Op


@dataclass(frozen=True)
class AttentionParams:
    """Variables of `attention.cpp.j2`; indices are of the kernel's arguments."""

    name: str
    phase: str
    element: str
    heads: int
    kv_heads: int
    k_dim: int
    v_dim: int
    v_in_k: bool
    page_tokens: int
    scale: str
    softcap: str
    window: int
    chunk: int
    slopes: tuple[str, ...]
    q: int
    kv: int
    positions: int
    sequence_starts: int
    context_lengths: int
    block_tables: int
    sinks: int | None
    out: int


def _attention(group: Group) -> Op:
    return group.ops("serve.paged_attention")[0]


def _supports(group: Group, options: KernelOptions) -> Answer:
    op = _attention(group)
    cache = cache_type(op.operands[1])
    others = [o.name for o in group.body.ops if o is not op and o.name != "core.reshape"]
    if others:
        return Refusal(f"{others[0]} beside the attention")
    if any(through_reshape(v).producer is not None for v in op.operands):
        return Refusal("an operand of the attention is computed inside the group")
    if len(group.body.results) != 1 or through_reshape(group.body.results[0]) is not op.result:
        return Refusal("the group yields more than the attention")
    if cache.page_tokens is None or cache.page_tokens % 16 or cache.page_tokens > 64:
        return Refusal(f"pages of {cache.page_tokens} tokens; 16, 32, 48 or 64 are supported")
    known = PAGE_ELEMENTS[options.target.kind]
    if cache.dtype not in known:
        return Refusal(f"a cache of {cache.dtype}; known: {', '.join(known)}")
    return Ok()


def _params(group: Group, options: KernelOptions, name: str) -> AttentionParams:
    op = _attention(group)
    cache = cache_type(op.operands[1])
    q, kv, positions, starts, contexts, tables, *sinks = (
        through_reshape(v).index for v in op.operands
    )
    alibi = op.attrs["alibi"] or ()
    assert isinstance(alibi, tuple)
    assert cache.page_tokens is not None
    return AttentionParams(
        name, _phase(group), PAGE_ELEMENTS[options.target.kind][cache.dtype], _heads(group),
        cache.kv_heads, cache.k_dim, cache.v_dim, cache.v_in_k, cache.page_tokens,
        literal(float_attr(op, "scale")),
        literal(0.0 if op.attrs["softcap"] is None else float_attr(op, "softcap")),
        0 if op.attrs["window"] is None else int_attr(op, "window"),
        0 if op.attrs["chunk"] is None else int_attr(op, "chunk"),
        tuple(literal(float(slope)) for slope in alibi),  # type: ignore[arg-type]
        q, kv, positions, starts, contexts, tables, sinks[0] if sinks else None,
        len(group.op.operands),
    )  # fmt: skip


def _phase(group: Group) -> str:
    return "decode" if group.func.name == "decode" else "prefill"


def _heads(group: Group) -> int:
    op = _attention(group)
    return row_elements(tensor(op.operands[0])) // cache_type(op.operands[1]).k_dim


def _scratch(group: Group, options: KernelOptions) -> Scratch:
    cache = cache_type(_attention(group).operands[1])
    in_keys = ", 1" if cache.v_in_k else ""
    return Scratch(
        shared=f"attention_scratch_bytes({_heads(group)}, {cache.kv_heads}, {cache.k_dim}, "
        f"{cache.v_dim}, kTablePages * {cache.page_tokens}, workers{in_keys})"
    )


def _weights(group: Group) -> tuple[WeightUse, ...]:
    sinks = [through_reshape(v) for v in _attention(group).operands[6:]]
    return tuple(WeightUse("vector", (v.index,)) for v in sinks if group.is_weight(v))


ATTENTION = KernelDef(
    name="attention",
    summary="paged attention with grouped heads",
    priority=10,
    matches=lambda group: len(group.ops("serve.paged_attention")) == 1,
    supports=_supports,
    params=_params,
    template="attention.cpp.j2",
    weights=_weights,
    scratch=_scratch,
)
