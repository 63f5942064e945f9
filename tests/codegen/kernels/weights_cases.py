"""Random weights in every format, as stored bytes and as the float32 they stand for."""

import numpy as np
from numpy.typing import NDArray

from inferc.codegen import packing
from inferc.ir.blocks import dequantize

BLOCK_FORMATS = tuple(packing.BLOCK_LAYOUTS)
# Where the halves (scales) of a block are: random bytes there would be infinities.
HALVES = {
    "q4_0": [0], "q4_1": [0, 2], "q5_0": [0], "q5_1": [0, 2], "q8_0": [0],
    "q2_k": [80, 82], "q3_k": [108], "q4_k": [0, 2], "q5_k": [0, 2], "q6_k": [208],
}  # fmt: skip


def random_rows(fmt: str, n: int, k: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Stored rows ``u8[n, row_bytes]``: every bit pattern of the integers, tame scales."""
    if fmt in packing.DENSE_BYTES:
        return encode(fmt, rng.standard_normal((n, k), np.float32) * np.float32(0.1))
    layout = packing.BLOCK_LAYOUTS[fmt]
    rows = rng.integers(0, 256, (n, k // layout.block_elements, layout.block_bytes), dtype=np.uint8)
    for at in HALVES[fmt]:
        half = (rng.standard_normal(rows.shape[:2]) * 0.01).astype(np.float16)
        rows[..., at : at + 2] = half[..., None].view(np.uint8)
    return rows.reshape(n, -1)


def encode(fmt: str, values: NDArray[np.float32]) -> NDArray[np.uint8]:
    if fmt == "f32":
        return values.view(np.uint8)
    if fmt == "f16":
        return values.astype(np.float16).view(np.uint8)
    return to_bf16(values).view(np.uint8)


def decode(fmt: str, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    if fmt == "f32":
        return rows.view(np.float32)
    if fmt == "f16":
        return rows.view(np.float16).astype(np.float32)
    if fmt == "bf16":
        return from_bf16(rows.view(np.uint16))
    return dequantize(fmt, rows)


def to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(values: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (values.astype(np.uint32) << 16).view(np.float32)
