"""Attention of whole sequences, and its mask as captured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inferc.ir.card import Attr, Attrs, BadSample, Card, Sample, TypeMismatch, register
from inferc.ir.dims import Size
from inferc.ir.ops._shapes import Dims, tensor_of
from inferc.ir.ops.contract import softmax
from inferc.ir.types import TensorType, Type


def causal_mask(
    queries: np.ndarray, keys: np.ndarray, window: int | None, chunk: int | None
) -> np.ndarray:
    """Which keys a query sees, from absolute positions: bool [Q, K]."""
    q, k = queries[:, None], keys[None, :]
    seen = k <= q
    if window is not None:
        seen &= k > q - window
    if chunk is not None:
        seen &= k // chunk == q // chunk
    return seen


def _infer_mask(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
    positions = tensor_of("nn.mask", "positions", types[0])
    if positions.rank != 2:
        raise TypeMismatch(f"nn.mask: positions must be [B, S], found {positions}")
    b, s = positions.shape
    return (TensorType((b, 1, s, s), "bool"),)


def _mask(positions: np.ndarray, *, kind: str, window: int | None, chunk: int | None) -> np.ndarray:
    if kind == "bidirectional":
        return np.ones((positions.shape[0], 1, positions.shape[1], positions.shape[1]), bool)
    return np.stack([causal_mask(p, p, window, chunk) for p in positions])[:, None]


register(
    Card(
        "nn.mask",
        "Attention mask [B, 1, S, S] by kind; exists between capture and raise-attention.",
        ("positions: [B, S]",),
        _infer_mask,
        _mask,
        attrs=(
            Attr("kind", (str,), False, "causal", ("causal", "bidirectional")),
            Attr("window", (int,), False),
            Attr("chunk", (int,), False),
        ),
        samples=(
            Sample((TensorType((2, 5), "i64"),), {"window": 3}, {0: (0, 1, 2, 3, 4) * 2}),
            Sample((TensorType((1, 5), "i64"),), {"chunk": 2}, {0: (0, 1, 2, 3, 4)}),
        ),
        refused=(BadSample((TensorType((5,), "i64"),), {}, "must be [B, S]"),),
    )
)


def _infer_attention(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
    dims = Dims("nn.attention")
    q = dims.match("q", types[0], "B", "S", "H", "D")
    dims.match("k", types[1], "B", "S", "G", "D")
    dims.match("v", types[2], "B", "S", "G", "E")
    more = [tensor_of("nn.attention", "operand", t) for t in types[3:]]
    if [t.rank for t in more] not in ([], [4], [1], [4, 1]):
        raise TypeMismatch(
            "nn.attention: behind q, k, v stand a mask [B, 1, S, S], sinks [H] or both; found "
            f"{', '.join(map(str, more))}"
        )
    if more and more[-1].rank == 1:
        dims.match("sinks", more[-1], "H")
    heads, groups = dims["H"], dims["G"]
    if not isinstance(heads, int) or not isinstance(groups, int) or heads % groups:
        raise TypeMismatch(
            f"nn.attention: {heads} query heads are no multiple of {groups} KV heads"
        )
    check_alibi("nn.attention", attrs, heads)
    return (q.with_shape((*q.shape[:3], dims["E"])),)


def check_alibi(op: str, attrs: Attrs, heads: int) -> None:
    """One slope a query head, or none. Raises TypeMismatch."""
    alibi = attrs["alibi"]
    if alibi is not None and (not isinstance(alibi, tuple) or len(alibi) != heads):
        raise TypeMismatch(f"{op}: alibi needs a slope for each of {heads} heads, found {alibi}")


def attend(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, queries: np.ndarray, keys: np.ndarray,
    seen: np.ndarray, sinks: np.ndarray | None, *,
    scale: float, softcap: float | None, alibi: tuple[float, ...] | None,
) -> np.ndarray:  # fmt: skip
    """Attention of q [Q, H, D] over k [K, G, D], v [K, G, E] where seen [Q, K]; [Q, H, E].

    `queries` and `keys` are the absolute positions.
    """
    repeat = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, repeat, 1), np.repeat(v, repeat, 1)
    scores = np.einsum("qhd,khd->hqk", q, k) * q.dtype.type(scale)
    if softcap is not None:
        scores = np.tanh(scores / softcap) * q.dtype.type(softcap)
    if alibi is not None:
        slopes = np.array(alibi, q.dtype)[:, None, None]
        scores = scores + slopes * (keys[None, :] - queries[:, None]).astype(q.dtype)
    scores = np.where(seen[None], scores, -np.inf)
    if sinks is not None:  # a score of each head that takes its share and gives nothing
        column = np.broadcast_to(sinks.astype(q.dtype)[:, None, None], (*scores.shape[:2], 1))
        scores = np.concatenate([scores, column], -1)
    shares = softmax(scores, -1)[..., : k.shape[0]]
    mixed: np.ndarray = np.einsum("hqk,khe->qhe", shares, v)
    return mixed


def _attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, *more: np.ndarray, scale: float, causal: bool,
    window: int | None, softcap: float | None, chunk: int | None = None,
    alibi: tuple[float, ...] | None = None,
) -> np.ndarray:  # fmt: skip
    length = q.shape[1]
    rows = np.arange(length)
    mask = next((m for m in more if m.ndim == 4), None)
    sinks = next((m for m in more if m.ndim == 1), None)
    seen = np.ones((length, length), bool)
    if causal:
        seen = causal_mask(rows, rows, window, chunk)
    masks = [seen if mask is None else seen & mask[b, 0] for b in range(q.shape[0])]
    return np.stack(
        [
            attend(q[b], k[b], v[b], rows, rows, masks[b], sinks,
                   scale=scale, softcap=softcap, alibi=alibi)
            for b in range(q.shape[0])
        ]
    )  # fmt: skip


def _attention_flops(types: Sequence[Type], attrs: Attrs) -> Size:
    q, _, v = types[:3]
    assert isinstance(q, TensorType) and isinstance(v, TensorType)
    b, s, h, d = q.shape
    return b * h * s * s * (d + v.shape[-1]) * 2


_ATTENTION = (
    TensorType((2, 5, 4, 8), "f32"),
    TensorType((2, 5, 2, 8), "f32"),
    TensorType((2, 5, 2, 6), "f32"),
)

register(
    Card(
        "nn.attention",
        "Scaled dot-product attention with grouped KV heads; one sequence a row.",
        (
            "q: [B, S, H, D]", "k: [B, S, G, D]", "v: [B, S, G, E]",
            "*more: mask [B, 1, S, S], then sinks [H]; each may be absent",
        ),
        _infer_attention,
        _attention,
        attrs=(
            Attr("scale", (float,)),
            Attr("causal", (bool,), False, True),
            Attr("window", (int,), False),
            Attr("softcap", (float,), False),
            Attr("chunk", (int,), False),
            Attr("alibi", (tuple,), False),
        ),
        flops=_attention_flops,
        samples=(
            *(
                Sample(_ATTENTION, {"scale": 0.35, **extra})
                for extra in (
                    {}, {"window": 3}, {"softcap": 20.0}, {"causal": False}, {"chunk": 2},
                    {"alibi": (0.5, 0.25, 0.125, 0.0625)},
                )
            ),
            Sample((*_ATTENTION, TensorType((4,), "f32")), {"scale": 0.35}),
        ),
        refused=(
            BadSample(
                tuple(TensorType((2, 5, h, 8), "f32") for h in (4, 3, 3)),
                {"scale": 1.0},
                "no multiple of 3 KV heads",
            ),
            BadSample(
                tuple(TensorType((2, s, 4, 8), "f32") for s in (5, 6, 6)),
                {"scale": 1.0},
                "dim S is 5",
            ),
            BadSample((*_ATTENTION, TensorType((3,), "f32")), {"scale": 1.0}, "dim H is 4"),
            BadSample((*_ATTENTION, TensorType((4, 4), "f32")), {"scale": 1.0}, "behind q, k, v"),
            BadSample(_ATTENTION, {"scale": 1.0, "alibi": (0.5,)}, "each of 4 heads"),
        ),
    )
)  # fmt: skip
