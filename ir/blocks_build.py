"""Rows of checkpoint blocks out of codes and scales that lie apart: the inverse of the decoders.

No value is rounded. What cannot be kept exactly is for the caller to refuse.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from inferc.ir.block_format import Bytes, Floats


def affine_rows(
    packed: Bytes, scales: NDArray[np.generic], zeros: Bytes, bits: int, block: int
) -> Bytes:
    """Rows of `u4*_g<block>` or `u8*_g<block>`.

    Args:
        packed: u8[N, K * bits / 8]: codes, of four bits two a byte, the low nibble first.
        scales: [N, G] in the 16-bit type of the format; a group has K / G columns in order.
        zeros: u8[N, G].
        bits: 4 or 8.
        block: Elements of a block; divides a group.
    """
    rows, count = len(packed), packed.shape[1] * 8 // (bits * block)
    repeat = count // scales.shape[1]
    out = np.zeros((rows, count, 4 + block * bits // 8), np.uint8)
    wide = np.repeat(scales, repeat, axis=1)
    out[..., :2] = wide[..., None].view(np.uint8)
    out[..., 2] = np.repeat(zeros, repeat, axis=1)
    out[..., 4:] = packed.reshape(rows, count, -1)
    return out.reshape(rows, -1)


def scaled_rows(codes: Bytes, scales: Floats, block: int, *, nibbles: bool) -> Bytes:
    """Rows of `f8_g<block>`, or with `nibbles` of `nf4_g<block>` and `fp4_g<block>`.

    Args:
        codes: u8[N, K], a code each.
        scales: f32[N, K / block].
        block: Elements of a block.
        nibbles: Whether a code has four bits.
    """
    rows, count = scales.shape
    packed = codes.reshape(rows, count, block)
    packed = pairs_of(packed) if nibbles else packed
    head = np.ascontiguousarray(scales)[..., None].view(np.uint8)
    return np.concatenate([head, packed], axis=2).reshape(rows, -1)


def mxfp4_rows(codes: Bytes, scales: Bytes) -> Bytes:
    """Rows of `mxfp4` from codes u8[N, K] and e8m0 scales u8[N, K / 32]."""
    rows, count = scales.shape
    halves = codes.reshape(rows, count, 2, 16)
    packed = halves[:, :, 0] | halves[:, :, 1] << np.uint8(4)
    return np.concatenate([scales[..., None], packed], axis=2).reshape(rows, -1)


def nibbles_of(packed: Bytes) -> Bytes:
    """Two codes a byte along the last axis, the low nibble first."""
    pairs = np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=-1)
    return pairs.reshape(*packed.shape[:-1], 2 * packed.shape[-1])


def pairs_of(codes: Bytes) -> Bytes:
    """The inverse of `nibbles_of`."""
    return codes[..., ::2] | codes[..., 1::2] << np.uint8(4)
