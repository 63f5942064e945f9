"""New keys to the pages of a cache that has its values in its keys: norm, rotation and write."""

from __future__ import annotations

from dataclasses import dataclass

from inferc.codegen.expressions import literal
from inferc.codegen.group import (
    Group,
    cache_type,
    float_attr,
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
from inferc.codegen.kernels.rope_append import PAGE_ELEMENTS
from inferc.codegen.operand_rows import OperandRows, Unfit, argument, made_by, operand_rows
from inferc.ir.core import Op, Value

_INSIDE = {
    "core.slice", "core.reshape", "core.concat", "nn.rms_norm", "nn.rope", "serve.k_append",
}  # fmt: skip
_DIM_MAX = 1024  # kMaxHeadDim


@dataclass(frozen=True)
class LatentAppendParams:
    """Variables of `latent_append.cpp.j2`; indices are of the kernel's arguments."""

    name: str
    element: str
    kv_heads: int
    own_dim: int
    shared_dim: int
    page_tokens: int
    own: OperandRows
    norm: int | None
    eps: str
    shared: OperandRows | None
    rotary_dim: int
    pairing: str
    cos: int | None
    sin: int | None
    kv: int
    slots: int


def _params(group: Group, options: KernelOptions, name: str) -> LatentAppendParams:
    strange = [op.name for op in group.body.ops if op.name not in _INSIDE]
    if strange:
        raise Unfit(f"{strange[0]} inside the group")
    append = group.ops("serve.k_append")[0]
    kv, key, slots = append.operands
    cache = cache_type(kv)
    if kv.producer is not None or slots.producer is not None:
        raise Unfit("the cache and the slots must be operands")
    elements = PAGE_ELEMENTS[options.target.kind]
    if cache.page_tokens is None or cache.dtype not in elements or cache.k_dim > _DIM_MAX:
        raise Unfit(
            f"the cache {cache}: no pages yet, none of {', '.join(elements)},"
            f" or keys of more than {_DIM_MAX}"
        )
    if [through_reshape(r) for r in group.body.results] != [append.result]:
        raise Unfit("results beside the cache")
    own, shared = _parts(key)
    norm = made_by(own, "nn.rms_norm")
    rope = made_by(shared, "nn.rope") if shared is not None else None
    turned = rope.operands[0] if rope is not None else shared
    if norm is not None and (len(norm.operands) != 2 or tensor(own).shape[-1] != _width(norm)):
        raise Unfit("a norm that is not over the latent, or without a weight")
    return LatentAppendParams(
        name, elements[cache.dtype], cache.kv_heads, static_size(own, -1),
        0 if shared is None else static_size(shared, -1), cache.page_tokens,
        operand_rows(norm.operands[0] if norm is not None else own), argument(norm, 1),
        literal(float_attr(norm, "eps") if norm is not None else 0.0),
        operand_rows(turned) if turned is not None else None,
        2 * static_size(rope.operands[1], -1) if rope is not None else 0,
        str(rope.attrs["pairing"]) if rope is not None else "half",
        argument(rope, 1), argument(rope, 2), kv.index, slots.index,
    )  # fmt: skip


def _parts(key: Value) -> tuple[Value, Value | None]:
    """A key's own and shared part; a key that is not joined here is one part."""
    joined = made_by(key, "core.concat")
    if joined is None:
        return key, None
    one_head = tensor(key).rank == 3 and static_size(key, 1) == 1
    if len(joined.operands) != 2 or joined.attrs["axis"] not in (2, -1) or not one_head:
        raise Unfit("keys joined of other than two parts, or of several heads")
    return joined.operands[0], joined.operands[1]


def _width(norm: Op) -> int:
    return static_size(norm.operands[0], -1)


def _supports(group: Group, options: KernelOptions) -> Answer:
    try:
        _params(group, options, "probe")
    except Unfit as error:
        return Refusal(str(error))
    return Ok()


LATENT_APPEND = KernelDef(
    name="latent_append",
    summary="norm of the latent, rotation of what heads share, page write of both",
    priority=10,
    matches=lambda group: len(group.ops("serve.k_append")) == 1,
    supports=_supports,
    params=_params,
    template="latent_append.cpp.j2",
    weights=lambda group: tuple(
        WeightUse("vector", (arg.index,)) for arg in group.body.args if group.is_weight(arg)
    ),
)
