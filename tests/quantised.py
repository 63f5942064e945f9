"""Quantise weights as the libraries do, in numpy: the stored tensors, and the values they mean.

Every function takes a matrix f32[N, K] and gives `Stored`: tensors by the suffix that follows the
module's name, and the values that the library's own formula makes of them. Packing is written as
the libraries write it, one shift after another, on purpose unlike the reader in `inferc.frontend`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from inferc.ir.blocks_checkpoint import FP4, NF4


@dataclass(frozen=True)
class Stored:
    """The pieces of a weight, and its values f32[N, K]."""

    pieces: dict[str, torch.Tensor]
    values: np.ndarray


Quantiser = Callable[[np.ndarray], Stored]
BF16 = torch.bfloat16


def _grouped(w: np.ndarray, groups: np.ndarray, bits: int, symmetric: bool, dtype: torch.dtype):
    """Codes [N, K] without sign, scales (rounded to `dtype`) and zero points [N, G]."""
    count, top = int(groups.max()) + 1, (1 << bits) - 1
    scales, zeros = np.empty((len(w), count), np.float32), np.empty((len(w), count), np.int64)
    for g in range(count):
        part = w[:, groups == g]
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        if symmetric:
            scales[:, g], zeros[:, g] = 2 * np.maximum(-low, high) / top, 1 << (bits - 1)
        else:
            scales[:, g] = (high - low) / top
            zeros[:, g] = np.clip(np.round(-low / scales[:, g]), 1, top)  # 0: refused in gptq
    rounded = torch.from_numpy(scales).to(dtype)
    wide = rounded.float().numpy()
    codes = np.clip(np.round(w / wide[:, groups]) + zeros[:, groups], 0, top).astype(np.int64)
    values = wide[:, groups] * (codes - zeros[:, groups]).astype(np.float32)
    return codes, rounded, zeros, values


def _packed(codes: np.ndarray, bits: int, order: list[int] | None = None) -> torch.Tensor:
    """The first axis packed into words: [R, C] to i32[R * bits / 32, C]."""
    each = 32 // bits
    padded = np.pad(codes, ((0, -len(codes) % each), (0, 0)))
    words = np.zeros((len(padded) // each, codes.shape[1]), np.uint32)
    for row in range(len(words)):
        for i, place in enumerate(order or range(each)):
            words[row] |= padded[row * each + place].astype(np.uint32) << np.uint32(bits * i)
    return torch.from_numpy(words.view(np.int32))


def gptq(
    bits: int = 4, group: int = 32, *, symmetric: bool = True, act_order: bool = False,
    alike: bool = True, version: int = 1, dtype: torch.dtype = torch.float16,
) -> Quantiser:  # fmt: skip
    """AutoGPTQ's `QuantLinear.pack`. `alike`: weights of equal width have the same order."""

    def quantise(w: np.ndarray) -> Stored:
        columns = w.shape[1]
        groups = np.arange(columns) // (columns if group == -1 else group)
        if act_order:
            seed = columns if alike else zlib.crc32(w.tobytes())
            groups = groups[np.random.default_rng(seed).permutation(columns)]
        codes, scales, zeros, values = _grouped(w, groups, bits, symmetric, dtype)
        pieces = {
            "qweight": _packed(codes.T, bits),
            "qzeros": _packed(zeros - (version == 1), bits).T.contiguous(),
            "scales": scales.T.contiguous(),
            "g_idx": torch.from_numpy(groups.astype(np.int32)),
        }
        return Stored(pieces, values)

    return quantise


def awq(group: int = 32) -> Quantiser:
    """AutoAWQ's `WQLinear_GEMM.from_linear`."""
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def quantise(w: np.ndarray) -> Stored:
        groups = np.arange(w.shape[1]) // (w.shape[1] if group == -1 else group)
        codes, scales, zeros, values = _grouped(w, groups, 4, False, torch.float16)
        pieces = {
            "qweight": _packed(codes, 4, order).T.contiguous(),
            "qzeros": _packed(zeros, 4, order).T.contiguous(),
            "scales": scales.T.contiguous(),
        }
        return Stored(pieces, values)

    return quantise


def pack_quantized(
    bits: int = 4, group: int = 32, *, symmetric: bool = True, act_order: bool = False,
    dtype: torch.dtype = BF16,
) -> Quantiser:  # fmt: skip
    """compressed-tensors' `pack_to_int32`: codes and zero points with 2 ** (bits - 1) added."""

    def quantise(w: np.ndarray) -> Stored:
        columns = w.shape[1]
        groups = np.arange(columns) // (columns if group == -1 else group)
        if act_order:
            groups = groups[np.random.default_rng(columns).permutation(columns)]
        codes, scales, zeros, values = _grouped(w, groups, bits, symmetric, dtype)
        pieces = {
            "weight_packed": _packed(codes.T, bits).T.contiguous(),
            "weight_scale": scales,
            "weight_shape": torch.tensor(w.shape),
        }
        if not symmetric:
            pieces["weight_zero_point"] = _packed(zeros, bits)
        if act_order:
            pieces["weight_g_idx"] = torch.from_numpy(groups.astype(np.int32))
        return Stored(pieces, values)

    return quantise


def int_quantized(
    group: int = -1, *, symmetric: bool = True, dtype: torch.dtype = BF16
) -> Quantiser:
    """compressed-tensors' int8 codes as bytes; group 0: one scale for all."""

    def quantise(w: np.ndarray) -> Stored:
        columns = w.shape[1]
        groups = np.arange(columns) // (columns if group <= 0 else group)
        given = w.reshape(1, -1) if group == 0 else w
        shared = np.zeros(given.shape[1], np.int64) if group == 0 else groups
        codes, scales, zeros, values = _grouped(given, shared, 8, symmetric, dtype)
        pieces = {
            "weight": torch.from_numpy((codes - 128).astype(np.int8).reshape(w.shape)),
            "weight_scale": scales.reshape(-1) if group == 0 else scales,
        }
        if not symmetric:
            pieces["weight_zero_point"] = torch.from_numpy((zeros - 128).astype(np.int8))
        return Stored(pieces, values.reshape(w.shape))

    return quantise


def float_quantized(
    strategy: str, *, scale_name: str = "weight_scale", dtype: torch.dtype = torch.float32,
    block: tuple[int, int] = (128, 128),
) -> Quantiser:  # fmt: skip
    """f8_e4m3 with a scale a tensor, a channel or a block."""

    def quantise(w: np.ndarray) -> Stored:
        rows, columns = w.shape
        high, wide = {"tensor": w.shape, "channel": (1, columns), "block": block}[strategy]
        shape = (-(-rows // high), -(-columns // wide))
        scales = torch.empty(shape)
        for i in range(shape[0]):
            for j in range(shape[1]):
                part = w[i * high : (i + 1) * high, j * wide : (j + 1) * wide]
                scales[i, j] = float(np.abs(part).max()) / 448
        scales = scales.to(dtype)
        each = scales.float().repeat_interleave(high, 0).repeat_interleave(wide, 1)
        each = each[:rows, :columns]
        codes = (torch.from_numpy(w) / each).to(torch.float8_e4m3fn)
        stored = scales.reshape(()) if strategy == "tensor" else scales
        return Stored({"weight": codes, scale_name: stored}, (codes.float() * each).numpy())

    return quantise


def bnb_four_bits(kind: str, blocksize: int = 64, *, nested: bool = False) -> Quantiser:
    """bitsandbytes' `quantize_4bit` and `QuantState.as_dict(packed=True)`."""
    table = {"nf4": NF4, "fp4": FP4}[kind]

    def quantise(w: np.ndarray) -> Stored:
        blocks = w.reshape(-1, blocksize)
        absmax = np.abs(blocks).max(1)
        codes = np.abs(blocks[..., None] / absmax[:, None, None] - table).argmin(-1)
        flat = codes.reshape(-1).astype(np.uint8)
        packed = flat[0::2] << 4 | flat[1::2]
        state: dict[str, Any] = {
            "quant_type": kind, "blocksize": blocksize, "dtype": "float16",
            "shape": list(w.shape),
        }  # fmt: skip
        pieces = {
            "weight": torch.from_numpy(packed[:, None]),
            "weight.quant_map": torch.from_numpy(table.copy()),
        }
        if nested:
            absmax = _nested(absmax, state, pieces)
        else:
            pieces["weight.absmax"] = torch.from_numpy(absmax)
        text = np.frombuffer(json.dumps(state).encode(), np.uint8).copy()
        pieces[f"weight.quant_state.bitsandbytes__{kind}"] = torch.from_numpy(text)
        return Stored(pieces, (absmax[:, None] * table[codes]).reshape(w.shape))

    return quantise


def _nested(
    absmax: np.ndarray, state: dict[str, Any], pieces: dict[str, torch.Tensor]
) -> np.ndarray:
    """Double quantisation: the scales less their mean by a table of 256, in blocks of 256."""
    table = np.sort(np.random.default_rng(0).uniform(-1, 1, 256)).astype(np.float32)
    offset = np.float32(absmax.mean())
    padded = np.pad(absmax - offset, (0, -len(absmax) % 256)).reshape(-1, 256)
    outer = np.abs(padded).max(1)
    codes = np.abs(padded[..., None] / outer[:, None, None] - table).argmin(-1)
    decoded = (table[codes] * outer[:, None]).reshape(-1)[: len(absmax)] + offset
    state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": float(offset)}
    codes = codes.reshape(-1)[: len(absmax)].astype(np.uint8)
    pieces["weight.absmax"] = torch.from_numpy(codes)
    pieces["weight.nested_absmax"] = torch.from_numpy(outer)
    pieces["weight.nested_quant_map"] = torch.from_numpy(table)
    return decoded


def bnb_int8(w: np.ndarray) -> Stored:
    """bitsandbytes' `int8_vectorwise_quant`; its formula multiplies twice, ours once."""
    absmax = np.abs(w).max(1)
    codes = np.round(w * (127 / absmax)[:, None]).astype(np.int8)
    pieces = {
        "weight": torch.from_numpy(codes),
        "SCB": torch.from_numpy(absmax),
        "weight_format": torch.tensor(0, dtype=torch.uint8),
    }
    scale = absmax * np.float32(7.874015718698502e-3)
    return Stored(pieces, codes.astype(np.float32) * scale[:, None])


def mxfp4(w: np.ndarray) -> Stored:
    """OCP Microscaling of experts [E, N, K]; values [E, N, K]. Low nibble first."""
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    table = np.concatenate([table, -table])
    blocks = w.reshape(*w.shape[:2], -1, 32)
    exponent = np.floor(np.log2(np.abs(blocks).max(-1))).astype(np.int64) - 2
    scaled = blocks / np.exp2(exponent)[..., None]
    codes = np.abs(scaled[..., None] - table).argmin(-1).astype(np.uint8)
    pieces = {
        "blocks": torch.from_numpy(codes[..., 0::2] | codes[..., 1::2] << 4),
        "scales": torch.from_numpy((exponent + 127).astype(np.uint8)),
    }
    values = table[codes] * np.exp2(exponent).astype(np.float32)[..., None]
    return Stored(pieces, values.reshape(w.shape).astype(np.float32))
