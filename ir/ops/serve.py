"""Ops of the serve stage: the KV cache as a value, attention over its pages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inferc.ir.card import Attr, Attrs, BadSample, Card, Sample, TypeMismatch, register
from inferc.ir.dims import Size, sym
from inferc.ir.ops._shapes import Dims
from inferc.ir.ops.attention import attend, causal_mask, check_alibi
from inferc.ir.types import CacheType, TensorType, Type, numpy_dtype

CacheArrays = tuple[np.ndarray, np.ndarray]  # K, V pools as CacheType lays them out


def _cache(op: str, type_: Type) -> CacheType:
    if not isinstance(type_, CacheType):
        raise TypeMismatch(f"{op}: expected a cache, found {type_}")
    return type_


def _infer_append(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
    cache, dims = _cache("serve.kv_append", types[0]), Dims("serve.kv_append")
    dims.bind("kv", "G", cache.kv_heads)
    dims.bind("kv", "D", cache.k_dim)
    dims.bind("kv", "E", cache.v_dim)
    if cache.v_in_k:
        raise TypeMismatch(f"serve.kv_append: {cache} stores no values; use serve.k_append")
    dims.match("k", types[1], "T", "G", "D")
    dims.match("v", types[2], "T", "G", "E")
    dims.match("slots", types[3], "T")
    return (cache,)


def _append(kv: CacheArrays, k: np.ndarray, v: np.ndarray, slots: np.ndarray) -> CacheArrays:
    keys, values = kv[0].copy(), kv[1].copy()
    page_tokens = keys.shape[-1]
    for t, slot in enumerate(slots):
        page, offset = divmod(int(slot), page_tokens)
        keys[page, :, :, offset] = _in_range(k[t], keys.dtype)
        values[page, :, offset] = _in_range(v[t], values.dtype)
    return keys, values


def _in_range(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """What is stored of numbers: f8e4m3 has no infinity, the largest stands for what is beyond."""
    return np.clip(x, -448, 448) if dtype == numpy_dtype("f8e4m3") else x


def _append_reads(types: Sequence[Type], attrs: Attrs) -> tuple[Size, ...]:
    return 0, *(t.nbytes for t in types[1:] if isinstance(t, TensorType))


def _append_writes(types: Sequence[Type], attrs: Attrs) -> tuple[Size, ...]:
    cache, k = types[:2]
    assert isinstance(cache, CacheType) and isinstance(k, TensorType)
    return (k.shape[0] * cache.bytes_per_token,)


def _infer_append_keys(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
    op = "serve.k_append"
    cache, dims = _cache(op, types[0]), Dims(op)
    if not cache.v_in_k:
        raise TypeMismatch(f"{op}: expected a cache whose values are in its keys, found {cache}")
    dims.bind("kv", "G", cache.kv_heads)
    dims.bind("kv", "D", cache.k_dim)
    dims.match("k", types[1], "T", "G", "D")
    dims.match("slots", types[2], "T")
    return (cache,)


def _append_keys(kv: CacheArrays, k: np.ndarray, slots: np.ndarray) -> CacheArrays:
    keys = kv[0].copy()
    for t, slot in enumerate(slots):
        page, offset = divmod(int(slot), keys.shape[-1])
        keys[page, :, :, offset] = _in_range(k[t], keys.dtype)
    return pools_of_keys(keys, kv[1].shape[-1])


def pools_of_keys(keys: np.ndarray, v_dim: int) -> CacheArrays:
    """The pools of a cache with values in its keys: V is a view of K, nothing is stored twice."""
    return keys, keys[:, :, :v_dim].swapaxes(2, 3)


_CACHE = CacheType(2, 8, 6, "f32", 4)
_LATENT = CacheType(2, 8, 6, "f32", 4, v_in_k=True)
_NEW = (TensorType((3, 2, 8), "f32"), TensorType((3, 2, 6), "f32"), TensorType((3,), "i32"))
register(
    Card(
        "serve.kv_append",
        "The cache with K and V of the new tokens written to their slots.",
        ("kv: cache", "k: [T, G, D]", "v: [T, G, E]", "slots: [T]"),
        _infer_append,
        _append,
        reads=_append_reads,
        writes=_append_writes,
        stateful=True,
        samples=(Sample((_CACHE, *_NEW), values={3: (5, 2, 0)}),),
        refused=(
            BadSample((_NEW[0], *_NEW), {}, "expected a cache"),
            BadSample((_CACHE, _NEW[1], *_NEW[1:]), {}, "dim D is 8"),
            BadSample((_LATENT, *_NEW), {}, "stores no values"),
        ),
    )
)
register(
    Card(
        "serve.k_append",
        "The cache with K of the new tokens written to their slots; values are parts of keys.",
        ("kv: cache", "k: [T, G, D]", "slots: [T]"),
        _infer_append_keys,
        _append_keys,
        reads=_append_reads,
        writes=_append_writes,
        stateful=True,
        samples=(Sample((_LATENT, _NEW[0], _NEW[2]), values={2: (5, 2, 0)}),),
        refused=(
            BadSample((_CACHE, _NEW[0], _NEW[2]), {}, "values are in its keys"),
            BadSample((_LATENT, _NEW[1], _NEW[2]), {}, "dim D is 8"),
        ),
    )
)


def context_size(window: int | None) -> Size:
    """Symbol for the mean number of cached tokens a sequence that attention reads.

    `C` without a window; `C_512` (the smaller of C and 512) with one. See `inferc.ir.cost`.
    """
    return sym("C" if window is None else f"C_{window}")


def attended_size(window: int | None) -> Size:
    """Symbol for the mean number of keys that one query sees: `A`, or `A_512` with a window."""
    return sym("A" if window is None else f"A_{window}")


def _infer_paged(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
    op, dims = "serve.paged_attention", Dims("serve.paged_attention")
    cache = _cache(op, types[1])
    q = dims.match("q", types[0], "T", "H", "D")
    dims.bind("kv", "D", cache.k_dim)
    dims.match("positions", types[2], "T")
    dims.match("sequence_starts", types[3], "R + 1")
    dims.match("context_lengths", types[4], "R")
    dims.match("block_tables", types[5], "R", "P")
    dims.bind("context_lengths", "R + 1", dims["R"] + 1)
    if len(types) > 6:
        dims.match("sinks", types[6], "H")
    heads = dims["H"]
    if not isinstance(heads, int) or heads % cache.kv_heads:
        raise TypeMismatch(
            f"{op}: {heads} query heads are no multiple of {cache.kv_heads} KV heads"
        )
    check_alibi(op, attrs, heads)
    return (q.with_shape((*q.shape[:2], cache.v_dim)),)


def _paged(
    q: np.ndarray, kv: CacheArrays, positions: np.ndarray, starts: np.ndarray, contexts: np.ndarray,
    tables: np.ndarray, sinks: np.ndarray | None = None, *, scale: float, window: int | None,
    softcap: float | None, chunk: int | None = None, alibi: tuple[float, ...] | None = None,
) -> np.ndarray:  # fmt: skip
    out = np.zeros((*q.shape[:2], kv[1].shape[-1]), q.dtype)
    page_tokens = kv[0].shape[-1]
    for r, context in enumerate(contexts):
        rows = slice(int(starts[r]), int(starts[r + 1]))
        if rows.start == rows.stop:
            continue
        pages = tables[r, : -(-int(context) // page_tokens)]
        k = np.concatenate([kv[0][p].transpose(2, 0, 1) for p in pages])[:context].astype(q.dtype)
        v = np.concatenate([kv[1][p].transpose(1, 0, 2) for p in pages])[:context].astype(q.dtype)
        queries, keys = positions[rows], np.arange(context)
        out[rows] = attend(
            q[rows], k, v, queries, keys, causal_mask(queries, keys, window, chunk), sinks,
            scale=scale, softcap=softcap, alibi=alibi,
        )  # fmt: skip
    return out


def _window(attrs: Attrs) -> int | None:
    """Most keys that a query sees; None if that is the whole context."""
    limits = [w for w in (attrs["window"], attrs["chunk"]) if isinstance(w, int)]
    return min(limits, default=None)


def _paged_reads(types: Sequence[Type], attrs: Attrs) -> tuple[Size, ...]:
    q, cache, positions, starts, contexts, tables, *sinks = types
    assert isinstance(cache, CacheType) and isinstance(contexts, TensorType)
    sequences = contexts.shape[0]
    kv = sequences * context_size(_window(attrs)) * cache.bytes_per_token
    others = (positions, starts, contexts, tables, *sinks)
    rest = (t.nbytes for t in others if isinstance(t, TensorType))
    assert isinstance(q, TensorType)
    return q.nbytes, kv, *rest


def _paged_flops(types: Sequence[Type], attrs: Attrs) -> Size:
    q, cache = types[:2]
    assert isinstance(q, TensorType) and isinstance(cache, CacheType)
    per_key = 2 * (cache.k_dim + cache.v_dim) + 10  # scores, weighted sum, soft-max
    return q.shape[0] * q.shape[1] * attended_size(_window(attrs)) * per_key


_PAGED = (
    TensorType((4, 4, 8), "f32"), _CACHE, TensorType((4,), "i32"), TensorType((3,), "i32"),
    TensorType((2,), "i32"), TensorType((2, 2), "i32"),
)  # fmt: skip
# Two sequences: three new tokens at positions 3, 4, 5, then one at position 0.
_PAGED_VALUES = {2: (3, 4, 5, 0), 3: (0, 3, 4), 4: (6, 1), 5: (2, 0, 1, 1)}

register(
    Card(
        "serve.paged_attention",
        "Causal attention of new tokens over the pages of their sequences.",
        (
            "q: [T, H, D]", "kv: cache", "positions: [T]", "sequence_starts: [R + 1]",
            "context_lengths: [R]", "block_tables: [R, P]", "sinks?: [H]",
        ),
        _infer_paged,
        _paged,
        attrs=(
            Attr("scale", (float,)),
            Attr("window", (int,), False),
            Attr("softcap", (float,), False),
            Attr("chunk", (int,), False),
            Attr("alibi", (tuple,), False),
        ),
        flops=_paged_flops,
        reads=_paged_reads,
        samples=(
            *(
                Sample(_PAGED, {"scale": 0.35, **extra}, _PAGED_VALUES)
                for extra in (
                    {}, {"window": 2}, {"softcap": 20.0}, {"chunk": 2},
                    {"alibi": (0.5, 0.25, 0.125, 0.0625)},
                )
            ),
            Sample((*_PAGED, TensorType((4,), "f32")), {"scale": 0.35}, _PAGED_VALUES),
            Sample((_PAGED[0], _LATENT, *_PAGED[2:]), {"scale": 0.35}, _PAGED_VALUES),
        ),
        refused=(
            BadSample(
                (TensorType((4, 3, 8), "f32"), *_PAGED[1:]), {"scale": 1.0}, "no multiple of 2"
            ),
            BadSample(
                (*_PAGED[:3], TensorType((2,), "i32"), *_PAGED[4:]), {"scale": 1.0}, "dim R + 1"
            ),
        ),
    )
)  # fmt: skip


def _no_group_types(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
    raise TypeMismatch("fuse.group: types come from the body")


def _no_group_reference(*_: np.ndarray, **__: object) -> np.ndarray:
    raise RuntimeError("the interpreter runs the body")


register(
    Card(
        "fuse.group",
        "Ops outlined by fusion; the body keeps what it computes. One group is one kernel.",
        ("*x: any",),
        _no_group_types,
        _no_group_reference,
        attrs=(
            Attr("kind", (str,), False, ""),
            Attr("kernel", (str,), False, ""),
            Attr("offsets", (tuple,), False, ()),
        ),
    )
)
