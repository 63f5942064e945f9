"""The block formats of GGUF, decoded in the order of float32 operations of ggml, bit for bit.

Decoders take blocks `u8[n, block_bytes]` and give `f32[n, block_elements]`.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from inferc.ir.block_format import BlockFormat, Bytes, Floats, bits, fields, halves


def _q4_0(blocks: Bytes) -> Floats:
    q = fields(blocks[:, 2:], 4, 16).astype(np.int8) - np.int8(8)
    return halves(blocks, 0) * q.astype(np.float32)


def _q4_1(blocks: Bytes) -> Floats:
    q = fields(blocks[:, 4:], 4, 16).astype(np.float32)
    return halves(blocks, 0) * q + halves(blocks, 2)


def _q5_0(blocks: Bytes) -> Floats:
    q = fields(blocks[:, 6:], 4, 16) | (bits(blocks[:, 2:6]) << np.uint8(4))
    return halves(blocks, 0) * (q.astype(np.int8) - np.int8(16)).astype(np.float32)


def _q5_1(blocks: Bytes) -> Floats:
    q = fields(blocks[:, 8:], 4, 16) | (bits(blocks[:, 4:8]) << np.uint8(4))
    return halves(blocks, 0) * q.astype(np.float32) + halves(blocks, 2)


def _q8_0(blocks: Bytes) -> Floats:
    return halves(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _scaled(scale: Floats, q: NDArray[np.generic], minimum: Floats | None = None) -> Floats:
    """`scale * q - minimum` with one scale (and minimum) for each equal group of q."""
    grouped = q.reshape(len(scale), scale.shape[1], -1).astype(np.float32)
    out = scale[:, :, None] * grouped
    if minimum is not None:
        out = out - minimum[:, :, None]
    return out.reshape(len(scale), -1)


def _q2_k(blocks: Bytes) -> Floats:
    scales = blocks[:, :16]
    scale = halves(blocks, 80) * (scales & np.uint8(15)).astype(np.float32)
    minimum = halves(blocks, 82) * (scales >> np.uint8(4)).astype(np.float32)
    return _scaled(scale, fields(blocks[:, 16:80], 2, 32), minimum)


def _q3_k(blocks: Bytes) -> Floats:
    # 16 six-bit scales: 8 bytes of low nibbles, then 4 bytes holding the two high bits of each.
    low, high = fields(blocks[:, 96:104], 4, 8), fields(blocks[:, 104:108], 2, 4)
    scales = (low | (high << np.uint8(4))).astype(np.int8) - np.int8(32)
    # A *clear* bit of the high mask subtracts 4.
    high_clear = fields(blocks[:, :32], 1, 32) ^ np.uint8(1)
    q = fields(blocks[:, 32:96], 2, 32).astype(np.int8) - (high_clear << np.uint8(2)).astype(
        np.int8
    )
    return _scaled(halves(blocks, 108) * scales.astype(np.float32), q)


def scales_and_minimums(packed: Bytes) -> tuple[Bytes, Bytes]:
    """The 8 six-bit scales and 8 six-bit minimums that q4_k and q5_k pack into 12 bytes."""
    a, b, c = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    top = np.uint8(0x30)
    scale = np.concatenate([a & np.uint8(63), (c & np.uint8(15)) | ((a >> 2) & top)], axis=1)
    minimum = np.concatenate([b & np.uint8(63), (c >> 4) | ((b >> 2) & top)], axis=1)
    return scale, minimum


def _q4_k(blocks: Bytes) -> Floats:
    scale, minimum = scales_and_minimums(blocks[:, 4:16])
    return _scaled(
        halves(blocks, 0) * scale.astype(np.float32),
        fields(blocks[:, 16:], 4, 32),
        halves(blocks, 2) * minimum.astype(np.float32),
    )


def _q5_k(blocks: Bytes) -> Floats:
    scale, minimum = scales_and_minimums(blocks[:, 4:16])
    q = fields(blocks[:, 48:], 4, 32) | (fields(blocks[:, 16:48], 1, 32) << np.uint8(4))
    return _scaled(
        halves(blocks, 0) * scale.astype(np.float32),
        q,
        halves(blocks, 2) * minimum.astype(np.float32),
    )


def _q6_k(blocks: Bytes) -> Floats:
    q = fields(blocks[:, :128], 4, 64) | (fields(blocks[:, 128:192], 2, 32) << np.uint8(4))
    scale = halves(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return _scaled(scale, q.astype(np.int8) - np.int8(32))


GGML_FORMATS: dict[BlockFormat, Callable[[Bytes], Floats]] = {
    BlockFormat("q4_0", 32, 18): _q4_0,
    BlockFormat("q4_1", 32, 20): _q4_1,
    BlockFormat("q5_0", 32, 22): _q5_0,
    BlockFormat("q5_1", 32, 24): _q5_1,
    BlockFormat("q8_0", 32, 34): _q8_0,
    BlockFormat("q2_k", 256, 84): _q2_k,
    BlockFormat("q3_k", 256, 110): _q3_k,
    BlockFormat("q4_k", 256, 144): _q4_k,
    BlockFormat("q5_k", 256, 176): _q5_k,
    BlockFormat("q6_k", 256, 210): _q6_k,
}
