"""Operators of com.microsoft on our cards, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from inferc.errors import CompileError
from inferc.frontend.onnx_values import known
from inferc.ir.blocks import dequantize
from inferc.ir.interp import run
from tests.frontend.onnx_runner import MICROSOFT, by_runtime, interpreted, model_of, translated

B, S, HEADS, GROUPS, SIZE = 2, 6, 4, 2, 16
RNG = np.random.default_rng(7)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def check(
    kind: str,
    inputs: dict[str, np.ndarray],
    weights: dict[str, np.ndarray] | None = None,
    order: list[str] | None = None,
    **attrs: Any,
) -> None:
    """One operator: our numbers are those of ONNX Runtime."""
    names = order or [*inputs, *(weights or {})]
    node = helper.make_node(kind, names, ["y"], domain=MICROSOFT, **attrs)
    model = model_of([node], inputs, ["y"], weights)
    found = interpreted(model, list(inputs.values()))[0]
    wanted = by_runtime(model, inputs)[0]
    np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("kind", ["Gelu", "FastGelu", "QuickGelu"])
def test_activations(kind: str) -> None:
    check(kind, {"x": floats(3, 8)})


def test_gelu_with_bias() -> None:
    check("BiasGelu", {"x": floats(3, 8)}, {"b": floats(8)})
    check("FastGelu", {"x": floats(3, 8)}, {"b": floats(8)})


@pytest.mark.parametrize("trans_a,trans_b", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_fused_matmul(trans_a: int, trans_b: int) -> None:
    a = floats(2, 5, 3) if trans_a else floats(2, 3, 5)
    b = floats(2, 4, 5) if trans_b else floats(2, 5, 4)
    check("FusedMatMul", {"a": a, "b": b}, transA=trans_a, transB=trans_b, alpha=0.5)


def test_skip_layer_norm() -> None:
    x, skip = floats(B, S, 32), floats(B, S, 32)
    vectors = {name: floats(32) for name in ("gamma", "beta", "bias")}
    check("SkipLayerNormalization", {"x": x, "skip": skip}, vectors, epsilon=1e-5)
    del vectors["bias"], vectors["beta"]
    check("SkipLayerNormalization", {"x": x, "skip": skip}, vectors, epsilon=1e-5)


def test_skip_rms_norm_gives_the_sum_as_well() -> None:
    inputs, weights = {"x": floats(B, S, 32), "skip": floats(B, S, 32)}, {"gamma": floats(32)}
    node = helper.make_node(
        "SkipSimplifiedLayerNormalization", ["x", "skip", "gamma"], ["y", "", "", "sum"],
        domain=MICROSOFT, epsilon=1e-6,
    )  # fmt: skip
    model = model_of([node], inputs, ["y", "sum"], weights)
    for ours, theirs in zip(
        interpreted(model, list(inputs.values())), by_runtime(model, inputs), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)


def test_simplified_layer_norm() -> None:
    node = helper.make_node("SimplifiedLayerNormalization", ["x", "w"], ["y"], epsilon=1e-6)
    inputs = {"x": floats(B, S, 32)}
    model = model_of([node], inputs, ["y"], {"w": floats(32)})
    np.testing.assert_allclose(
        interpreted(model, [inputs["x"]])[0], by_runtime(model, inputs)[0], rtol=1e-4, atol=1e-5
    )


def tables(columns: int) -> dict[str, np.ndarray]:
    angle = np.arange(32)[:, None] / 100.0 ** (np.arange(columns) / columns)
    return {"cos": np.cos(angle).astype(np.float32), "sin": np.sin(angle).astype(np.float32)}


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("dims", [SIZE, SIZE // 2])
def test_rotary(interleaved: int, dims: int) -> None:
    positions = np.broadcast_to(np.arange(S), (B, S)).astype(np.int64)
    partial = {} if dims == SIZE else {"rotary_embedding_dim": dims, "num_heads": HEADS}
    check(
        "RotaryEmbedding", {"x": floats(B, S, HEADS * SIZE), "positions": positions},
        tables(dims // 2), interleaved=interleaved, **partial,
    )  # fmt: skip
    check(
        "RotaryEmbedding", {"x": floats(B, HEADS, S, SIZE), "positions": positions},
        tables(SIZE // 2), interleaved=interleaved,
    )  # fmt: skip


def grouped(packed: bool, rotary: bool, **attrs: Any) -> None:
    """GroupQueryAttention over a whole sequence, its past empty."""
    projections = {"q": floats(B, S, HEADS * SIZE)}
    if packed:
        projections = {"q": floats(B, S, (HEADS + 2 * GROUPS) * SIZE)}
    else:
        projections |= {name: floats(B, S, GROUPS * SIZE) for name in "kv"}
    lengths = {"seqlens": np.full(B, S - 1, np.int32), "total": np.array(S, np.int32)}
    weights = tables(SIZE // 2) if rotary else {}
    names = ["q", "" if packed else "k", "" if packed else "v", "", "", "seqlens", "total"]
    names += ["cos", "sin"] if rotary else []
    node = helper.make_node(
        "GroupQueryAttention", names, ["y", "pk", "pv"], domain=MICROSOFT, num_heads=HEADS,
        kv_num_heads=GROUPS, do_rotary=int(rotary), **attrs,
    )  # fmt: skip
    model = model_of([node], projections | lengths, ["y"], weights)
    wanted = by_runtime(model, projections | lengths)[0]
    found = interpreted_at_positions(model, [*projections.values(), *lengths.values()])
    np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5)


LENGTHS = {"seqlens": known([S - 1] * B, "i32"), "total": known(S, "i32")}


def interpreted_at_positions(model: Any, inputs: list[np.ndarray]) -> np.ndarray:
    made = translated(model, LENGTHS, tokens=(B, S))
    positions = np.broadcast_to(np.arange(S), (B, S))

    def param(name: str, _: Any) -> np.ndarray:
        return made.tensors[name].read_float32()

    return run(made.func, [*inputs, positions], param)[0]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("rotary", [False, True])
def test_grouped_attention(packed: bool, rotary: bool) -> None:
    grouped(packed, rotary)


@pytest.mark.parametrize(
    "attrs",
    [{"local_window_size": 3}, {"softcap": 2.0}, {"scale": 0.1}, {"rotary_interleaved": 1}],
    ids=str,
)
def test_grouped_attention_options(attrs: dict[str, Any]) -> None:
    grouped(False, "rotary_interleaved" in attrs, **attrs)


def test_grouped_attention_refuses_a_past_that_may_have_tokens() -> None:
    past = floats(B, GROUPS, 3, SIZE)
    node = helper.make_node(
        "GroupQueryAttention", ["q", "k", "v", "past_k", "past_v", "seqlens", "total"],
        ["y", "pk", "pv"], domain=MICROSOFT, num_heads=HEADS, kv_num_heads=GROUPS,
    )  # fmt: skip
    inputs = {"q": floats(B, S, HEADS * SIZE)} | {n: floats(B, S, GROUPS * SIZE) for n in "kv"}
    inputs |= {"past_k": past, "past_v": past}
    model = model_of([node], inputs, ["y"])
    with pytest.raises(CompileError, match="past is not known to be empty"):
        translated(model, LENGTHS)


def test_grouped_attention_refuses_sequences_that_may_be_padded() -> None:
    node = helper.make_node(
        "GroupQueryAttention", ["q", "k", "v", "", "", "seqlens", "total"], ["y", "pk", "pv"],
        domain=MICROSOFT, num_heads=HEADS, kv_num_heads=GROUPS,
    )  # fmt: skip
    inputs = {"q": floats(B, S, HEADS * SIZE)} | {n: floats(B, S, GROUPS * SIZE) for n in "kv"}
    inputs |= {"seqlens": np.full(B, S - 1, np.int32)}
    model = model_of([node], inputs, ["y"])
    with pytest.raises(CompileError, match="seqlens_k is computed from data"):
        translated(model, {"total": LENGTHS["total"]})
    short = {"seqlens": known([S - 2, S - 1], "i32")}
    with pytest.raises(CompileError, match="seqlens_k is not known to be 5"):
        translated(model, LENGTHS | short)


@pytest.mark.parametrize("unidirectional", [0, 1])
def test_multi_head_attention(unidirectional: int) -> None:
    inputs = {name: floats(B, S, HEADS * SIZE) for name in "qkv"}
    check("MultiHeadAttention", inputs, num_heads=HEADS, unidirectional=unidirectional)


# -- quantised weights
N, K = 24, 256


def quantised(bits: int, block: int, zeros: str) -> dict[str, np.ndarray]:
    """Random weights as MatMulNBits stores them; scales are float16 numbers."""
    count = K // block
    scales = RNG.uniform(0.001, 0.02, (N, count)).astype(np.float16).astype(np.float32)
    weights = {"packed": RNG.integers(0, 256, (N, count, block * bits // 8), np.uint8)}
    weights["scales"] = scales.ravel()
    if zeros == "odd":  # minima are no float16 numbers
        weights["zeros"] = RNG.integers(0, 256, (N, (count * bits + 7) // 8), np.uint8).ravel()
    if zeros == "bf16":
        wide = 1e-8 * scales  # too small for float16
        weights["scales"] = (wide.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32).ravel()
    if zeros == "given":
        scales[:] = 2.0 ** RNG.integers(-10, -5, (N, count))  # minima are float16 numbers too
        weights["scales"] = scales.ravel().astype(np.float32)
        weights["zeros"] = RNG.integers(0, 256, (N, (count * bits + 7) // 8), np.uint8).ravel()
    return weights


@pytest.mark.parametrize(
    "bits,block,zeros,kind",
    [(4, 32, "", "q4_0"), (4, 128, "", "q4_0"), (4, 32, "given", "q4_1"), (4, 64, "given", "q4_1"),
     (8, 32, "", "q8_0"), (4, 128, "odd", "u4_g128"), (4, 32, "bf16", "u4b_g32"),
     (8, 64, "odd", "u8_g64")],
)  # fmt: skip
def test_quantised_weights_keep_their_values(bits: int, block: int, zeros: str, kind: str) -> None:
    weights, x = quantised(bits, block, zeros), floats(3, K)
    node = helper.make_node(
        "MatMulNBits", ["x", *weights], ["y"], domain=MICROSOFT, N=N, K=K, bits=bits,
        block_size=block,
    )  # fmt: skip
    model = model_of([node], {"x": x}, ["y"], weights)
    made = translated(model)
    (tensor,) = made.tensors.values()
    assert tensor.dtype == kind
    assert tensor.nbytes == tensor.read().nbytes
    exact = plain(weights, bits, block)
    np.testing.assert_array_equal(dequantize(kind, tensor.read()), exact)
    np.testing.assert_allclose(interpreted(model, [x])[0], x @ exact.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(by_runtime(model, {"x": x})[0], x @ exact.T, rtol=2e-2, atol=2e-2)


def plain(weights: dict[str, np.ndarray], bits: int, block: int) -> np.ndarray:
    """The weights in float32, element by element."""
    count = K // block
    scales = weights["scales"].reshape(N, count)
    zeros = np.full((N, count), 1 << (bits - 1), np.int64)
    if "zeros" in weights:
        given = weights["zeros"].reshape(N, -1)
        zeros = (given.astype(np.int64) if bits == 8 else nibbles(given))[:, :count]
    packed = weights["packed"].reshape(N, -1)
    values = (packed if bits == 8 else nibbles(packed)).astype(np.int64).reshape(N, count, block)
    return ((values - zeros[..., None]) * scales[..., None]).astype(np.float32).reshape(N, K)


def nibbles(packed: np.ndarray) -> np.ndarray:
    return np.stack([packed & 15, packed >> 4], -1).reshape(packed.shape[0], -1).astype(np.int64)


def test_scales_that_would_be_rounded_are_refused() -> None:
    weights = quantised(4, 32, "")
    weights["scales"] = weights["scales"] * np.float32(1.0001)
    node = helper.make_node(
        "MatMulNBits", ["x", *weights], ["y"], domain=MICROSOFT, N=N, K=K, bits=4, block_size=32
    )
    model = model_of([node], {"x": floats(3, K)}, ["y"], weights)
    with pytest.raises(CompileError, match=r"MatMulNBits.*would be rounded"):
        translated(model)


@pytest.mark.parametrize("attrs", [{"block_size": 16}, {"bits": 2}])
def test_other_block_sizes_and_bits_are_refused(attrs: dict[str, int]) -> None:
    weights = quantised(4, 32, "")
    given = {"N": N, "K": K, "bits": 4, "block_size": 32} | attrs
    node = helper.make_node("MatMulNBits", ["x", *weights], ["y"], domain=MICROSOFT, **given)
    model = model_of([node], {"x": floats(3, K)}, ["y"], weights)
    with pytest.raises(CompileError, match="expected 4 or 8 bits"):
        translated(model)
