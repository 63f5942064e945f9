"""Ops of the nn stage: norms, rotary embedding, gated activation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from inferc.ir.card import Attr, Attrs, BadSample, Card, Sample, TypeMismatch, register
from inferc.ir.dims import Size, known_eq
from inferc.ir.ops._shapes import Dims, tensor_of
from inferc.ir.ops.elementwise import gelu, silu
from inferc.ir.types import TensorType, Type

ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": lambda x: gelu(x, "tanh"),
    "relu": lambda x: np.maximum(x, x.dtype.type(0)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}


def _infer_norm(op: str) -> Callable[[Sequence[Type], Attrs], tuple[Type, ...]]:
    def infer(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
        dims = Dims(op)
        x = dims.match("x", types[0], "..", "H")
        for name, type_ in zip(("w", "b"), types[1:], strict=False):
            dims.match(name, type_, "H")
        return (x,)

    return infer


def _rms_norm(x: np.ndarray, w: np.ndarray | None = None, *, eps: float) -> np.ndarray:
    y: np.ndarray = x / np.sqrt(np.mean(x * x, -1, keepdims=True) + x.dtype.type(eps))
    return y if w is None else y * w.astype(x.dtype)


def _layer_norm(
    x: np.ndarray, w: np.ndarray | None = None, b: np.ndarray | None = None, *, eps: float
) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    y: np.ndarray = centred / np.sqrt(
        np.mean(centred * centred, -1, keepdims=True) + x.dtype.type(eps)
    )
    y = y if w is None else y * w.astype(x.dtype)
    return y if b is None else y + b.astype(x.dtype)


def _per_element(count: int) -> Callable[[Sequence[Type], Attrs], Size]:
    def flops(types: Sequence[Type], attrs: Attrs) -> Size:
        assert isinstance(types[0], TensorType)
        return types[0].elements * count

    return flops


_X = TensorType((2, 3, 8), "f32")
_W = TensorType((8,), "f32")
register(
    Card(
        "nn.rms_norm",
        "x / sqrt(mean(x^2) + eps) over the last axis, times w (arXiv 1910.07467).",
        ("x: [.., H]", "w?: [H]"),
        _infer_norm("nn.rms_norm"),
        _rms_norm,
        attrs=(Attr("eps", (float,)),),
        flops=_per_element(4),
        samples=(Sample((_X, _W), {"eps": 1e-6}), Sample((_X,), {"eps": 1e-5})),
        refused=(BadSample((_X, TensorType((3,), "f32")), {"eps": 1e-6}, "dim H is 8"),),
    )
)
register(
    Card(
        "nn.layer_norm",
        "(x - mean) / sqrt(var + eps) over the last axis, times w, plus b (arXiv 1607.06450).",
        ("x: [.., H]", "w?: [H]", "b?: [H]"),
        _infer_norm("nn.layer_norm"),
        _layer_norm,
        attrs=(Attr("eps", (float,)),),
        flops=_per_element(7),
        samples=(Sample((_X, _W, _W), {"eps": 1e-5}), Sample((_X, _W), {"eps": 1e-5})),
        refused=(BadSample((_X, _W, TensorType((3,), "f32")), {"eps": 1e-5}, "dim H is 8"),),
    )
)


def _infer_rope_table(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
    positions, inv = tensor_of("nn.rope_table", "positions", types[0]), Dims("nn.rope_table")
    inv.match("inv_freq", types[1], "R2")
    table = TensorType((*positions.shape, inv["R2"]), "f32")
    return table, table


def _rope_table(
    positions: np.ndarray, inv_freq: np.ndarray, *, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    angle = positions[..., None].astype(inv_freq.dtype) * inv_freq
    return np.cos(angle) * inv_freq.dtype.type(scale), np.sin(angle) * inv_freq.dtype.type(scale)


register(
    Card(
        "nn.rope_table",
        "cos and sin of positions * inv_freq, times scale (arXiv 2104.09864).",
        ("positions: [..]", "inv_freq: [R2]"),
        _infer_rope_table,
        _rope_table,
        attrs=(Attr("scale", (float,), False, 1.0),),
        flops=lambda types, attrs: types[0].elements * types[1].elements * 25,  # type: ignore[union-attr]
        samples=(Sample((TensorType((2, 3), "i64"), TensorType((4,), "f32"))),),
        refused=(BadSample((TensorType((3,), "i64"), _X), {}, "inv_freq needs axes"),),
    )
)


def _infer_rope(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
    x = tensor_of("nn.rope", "x", types[0])
    cos, sin = tensor_of("nn.rope", "cos", types[1]), tensor_of("nn.rope", "sin", types[2])
    lead = (*x.shape[:-2], *cos.shape[-1:])
    if x.rank < 2 or cos.shape != sin.shape or cos.rank != x.rank - 1:
        raise TypeMismatch(
            f"nn.rope: needs x [.., H, D] and cos, sin [.., R/2]; found {x}, {cos}, {sin}"
        )
    if any(known_eq(a, b) is not True for a, b in zip(lead, cos.shape, strict=True)):
        raise TypeMismatch(f"nn.rope: leading axes of {x} and {cos} differ")
    if not isinstance(x.shape[-1], int) or not isinstance(cos.shape[-1], int):
        raise TypeMismatch(f"nn.rope: head size must be constant, found {x}")
    if 2 * cos.shape[-1] > x.shape[-1]:
        raise TypeMismatch(f"nn.rope: {cos} rotates more than the head of {x}")
    return (x,)


def _rope(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, *, pairing: str) -> np.ndarray:
    half = cos.shape[-1]
    c, s = cos[..., None, :].astype(x.dtype), sin[..., None, :].astype(x.dtype)
    out = x.copy()
    if pairing == "half":
        a, b = x[..., :half], x[..., half : 2 * half]
        out[..., :half], out[..., half : 2 * half] = a * c - b * s, b * c + a * s
    else:
        a, b = x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2]
        out[..., 0 : 2 * half : 2], out[..., 1 : 2 * half : 2] = a * c - b * s, b * c + a * s
    return out


register(
    Card(
        "nn.rope",
        "Rotate the first R of D dims of every head: pairs (i, i + R/2) or (2i, 2i + 1).",
        ("x: [.., H, D]", "cos: [.., R2]", "sin: [.., R2]"),
        _infer_rope,
        _rope,
        attrs=(Attr("pairing", (str,), False, "half", ("half", "interleaved")),),
        flops=_per_element(3),
        samples=tuple(
            Sample(
                (
                    TensorType((2, 3, 4, 8), "f32"),
                    TensorType((2, 3, r), "f32"),
                    TensorType((2, 3, r), "f32"),
                ),
                {"pairing": p},
            )
            for r, p in ((4, "half"), (3, "half"), (4, "interleaved"), (2, "interleaved"))
        ),
        refused=(
            BadSample((_X, TensorType((2, 5), "f32"), TensorType((2, 5), "f32")), {}, "rotates"),
            BadSample((_X, TensorType((3, 2), "f32"), TensorType((3, 2), "f32")), {}, "leading"),
            BadSample((_X, TensorType((2, 2), "f32"), TensorType((2, 3), "f32")), {}, "cos, sin"),
        ),
    )
)


def _infer_glu(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
    gate, up = tensor_of("nn.glu", "gate", types[0]), tensor_of("nn.glu", "up", types[1])
    if gate != up:
        raise TypeMismatch(f"nn.glu: gate {gate} and up {up} differ")
    return (gate,)


register(
    Card(
        "nn.glu",
        "activation(gate) * up (arXiv 2002.05202).",
        ("gate: [..]", "up: [..]"),
        _infer_glu,
        lambda gate, up, *, activation: ACTIVATIONS[activation](gate) * up,
        attrs=(Attr("activation", (str,), choices=tuple(ACTIVATIONS)),),
        flops=_per_element(12),
        samples=tuple(Sample((_X, _X), {"activation": a}) for a in ACTIVATIONS),
        refused=(BadSample((_X, _W), {"activation": "silu"}, "differ"),),
    )
)
