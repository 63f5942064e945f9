"""Rotary embedding, head norms and the write of K and V to their pages, in one pass."""

from __future__ import annotations

from dataclasses import dataclass

from inferc.codegen.expressions import literal
from inferc.codegen.group import (
    Group,
    cache_type,
    float_attr,
    row_elements,
    static_size,
    tensor,
    through_reshape,
)
from inferc.codegen.kernel import (
    Answer,
    KernelDef,
    KernelOptions,
    Ok,
    Refusal,
    WeightUse,
)
from inferc.codegen.operand_rows import OperandRows, Unfit, argument, operand_rows
from inferc.ir.core import Op, Value

_ELEMENTS = {"f32": "float", "bf16": "bf16", "f16": "f16"}
# C++ types of stored keys and values, by the kind of target.
PAGE_ELEMENTS = {
    "cpu": {**_ELEMENTS, "i8": "i8"},
    "cuda": {**_ELEMENTS, "f8e4m3": "f8e4m3", "i8": "i8"},
}
_INSIDE = {
    "core.slice", "core.reshape", "nn.rms_norm", "nn.rope", "serve.kv_append",
}  # fmt: skip


@dataclass(frozen=True)
class RopeAppendParams:
    """Variables of `rope_append.cpp.j2`; indices are of the kernel's arguments."""

    name: str
    element: str
    heads: int
    kv_heads: int
    k_dim: int
    v_dim: int
    page_tokens: int
    rotary_dim: int
    pairing: str
    eps: str
    q: OperandRows | None
    k: OperandRows
    v: OperandRows
    kv: int
    slots: int
    cos: int | None
    sin: int | None
    q_norm: int | None
    k_norm: int | None
    q_out: int


@dataclass(frozen=True)
class _Heads:
    """One of q and k: where its rows come from, its norm and its rotation."""

    rows: OperandRows
    norm: Op | None
    rope: Op | None


def _heads(value: Value) -> _Heads:
    """Walk back from a value through rope, norm, reshape and slice to an argument."""
    value = through_reshape(value)
    rope = value.producer if value.producer and value.producer.name == "nn.rope" else None
    value = through_reshape(rope.operands[0]) if rope else value
    norm = value.producer if value.producer and value.producer.name == "nn.rms_norm" else None
    return _Heads(operand_rows(norm.operands[0] if norm else value), norm, rope)


def _params(group: Group, options: KernelOptions, name: str) -> RopeAppendParams:
    strange = [op.name for op in group.body.ops if op.name not in _INSIDE]
    if strange:
        raise Unfit(f"{strange[0]} inside the group")
    append = group.ops("serve.kv_append")[0]
    kv, k_value, v_value, slots = append.operands
    cache = cache_type(kv)
    if kv.producer is not None or slots.producer is not None:
        raise Unfit("the cache and the slots must be operands")
    elements = PAGE_ELEMENTS[options.target.kind]
    if cache.page_tokens is None or cache.dtype not in elements:
        raise Unfit(f"the cache {cache} has no pages yet, or is none of {', '.join(elements)}")
    results = [r for r in group.body.results if r is not append.result]
    if len(results) > 1 or not any(r is append.result for r in group.body.results):
        raise Unfit("expected the results (q, cache) or (cache)")
    q_value = results[0] if results else None
    q = _heads(q_value) if q_value is not None else None
    k, v = _heads(k_value), _heads(v_value)
    if v.norm is not None or v.rope is not None:
        raise Unfit("values with a norm or a rotation")
    rope = _one([h.rope for h in (q, k) if h is not None])
    heads = row_elements(tensor(q_value)) // cache.k_dim if q_value is not None else 0
    _check_norms([h.norm for h in (q, k) if h is not None and h.norm is not None], cache.k_dim)
    inputs = len(group.op.operands)
    return RopeAppendParams(
        name, elements[cache.dtype], heads, cache.kv_heads, cache.k_dim, cache.v_dim,
        cache.page_tokens, 2 * static_size(rope.operands[1], -1) if rope else 0,
        str(rope.attrs["pairing"]) if rope else "half", _eps(q, k), q.rows if q else None,
        k.rows, v.rows, kv.index, slots.index, argument(rope, 1), argument(rope, 2),
        argument(q.norm if q else None, 1), argument(k.norm, 1),
        inputs + next((i for i, r in enumerate(group.body.results) if r is q_value), 0),
    )  # fmt: skip


def _one(ropes: list[Op | None]) -> Op | None:
    """The rotation of q and k, which must be the same."""
    first = ropes[0]
    for rope in ropes[1:]:
        if (rope is None) != (first is None):
            raise Unfit("only one of q and k is rotated")
        if rope is not None and first is not None:
            if rope.operands[1:] != first.operands[1:] or rope.attrs != first.attrs:
                raise Unfit("q and k are rotated differently")
    return first


def _check_norms(norms: list[Op], k_dim: int) -> None:
    for norm in norms:
        if len(norm.operands) != 2 or tensor(norm.operands[0]).shape[-1] != k_dim:
            raise Unfit("a norm that is not over single heads with a weight")
    if len({norm.attrs["eps"] for norm in norms}) > 1:
        raise Unfit("norms of q and k with different eps")


def _eps(q: _Heads | None, k: _Heads) -> str:
    norms = [h.norm for h in (q, k) if h is not None and h.norm is not None]
    return literal(float_attr(norms[0], "eps") if norms else 0.0)


def _supports(group: Group, options: KernelOptions) -> Answer:
    try:
        _params(group, options, "probe")
    except Unfit as error:
        return Refusal(str(error))
    return Ok()


def _weights(group: Group) -> tuple[WeightUse, ...]:
    return tuple(
        WeightUse("vector", (arg.index,)) for arg in group.body.args if group.is_weight(arg)
    )


ROPE_APPEND = KernelDef(
    name="rope_append",
    summary="head norm, rotation and page write of new keys and values",
    priority=10,
    matches=lambda group: len(group.ops("serve.kv_append")) == 1,
    supports=_supports,
    params=_params,
    template="rope_append.cpp.j2",
    weights=_weights,
)
