"""Random weights in every format, as stored bytes and as the float32 they stand for."""

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from inferc.codegen import packing
from inferc.ir.blocks import dequantize
from inferc.ir.blocks_encode import random_blocks

BLOCK_FORMATS = tuple(packing.BLOCK_LAYOUTS)


def random_rows(fmt: str, n: int, k: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Stored rows ``u8[n, row_bytes]``: every bit pattern of the integers, tame scales."""
    if fmt == "i8":
        return rng.integers(0, 256, (n, k), np.uint8)
    if fmt in packing.DENSE_BYTES:
        return encode(fmt, rng.standard_normal((n, k), np.float32) * np.float32(0.1))
    return random_blocks(fmt, n, k, rng, scale=0.01)


def encode(fmt: str, values: NDArray[np.float32]) -> NDArray[np.uint8]:
    if fmt == "f32":
        return values.view(np.uint8)
    if fmt == "f16":
        return values.astype(np.float16).view(np.uint8)
    if fmt == "f8e4m3":
        return values.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    return to_bf16(values).view(np.uint8)


def decode(fmt: str, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    if fmt == "f32":
        return rows.view(np.float32)
    if fmt == "f16":
        return rows.view(np.float16).astype(np.float32)
    if fmt == "f8e4m3":
        return rows.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    if fmt == "i8":
        return rows.view(np.int8).astype(np.float32)
    if fmt == "bf16":
        return from_bf16(rows.view(np.uint16))
    return dequantize(fmt, rows)


def to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(values: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (values.astype(np.uint32) << 16).view(np.float32)
