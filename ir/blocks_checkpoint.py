"""Block formats that hold what quantised Hugging Face checkpoints store, without rounding.

Checkpoints keep codes, scales and zero points in tensors of their own. Here they lie together, in
blocks along K of one output row, multi-byte numbers little-endian, reserved bytes zero:

    u4_gG, u4b_gG   scale (2) | zero u8 (1) | reserved (1) | G/2 bytes, of codes 2i and 2i+1 the
                    byte i holds the first in its low nibble
                    value = scale * (code - zero); scale is float16, with a `b` bfloat16
    u8_gG, u8b_gG   the same with G bytes, a code each
    f8_g128         scale f32 (4) | 128 bytes of float8_e4m3fn;  value = scale * code
    nf4_g64 fp4_g64 scale f32 (4) | 32 bytes, nibbles as in u4;  value = scale * TABLE[code]
    mxfp4           scale e8m0 (1) | 16 bytes, byte i holds code i in its low nibble and code 16 + i
                    in its high one (as ggml has it); value = 2 ** (scale - 127) * E2M1[code],
                    NaN if the scale is 255 (OCP Microscaling Formats 1.0, sections 5.3 and 5.4)

G is 32, 64 or 128. The tables NF4 and FP4 are those of bitsandbytes (functional.get_4bit_type).
Decoders take blocks `u8[n, block_bytes]` and give `f32[n, block_elements]`; all products are single
float32 multiplications.
"""

from collections.abc import Callable
from functools import partial

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from inferc.ir.block_format import BlockFormat, Bytes, Floats, fields

GROUPS = (32, 64, 128)
SCALE_TYPES: dict[str, np.dtype[np.generic]] = {
    "": np.dtype(np.float16),
    "b": np.dtype(ml_dtypes.bfloat16),
}
"""Type of the scale by the letter that the names of affine formats have for it."""

NF4: Floats = np.array(
    [
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
        -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
        0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
        0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ],
    np.float32,
)  # fmt: skip
_FP4_SIZES = np.array([0, 0.0625, 8, 12, 4, 6, 2, 3], np.float32) / np.float32(12)
FP4: Floats = np.concatenate([_FP4_SIZES, -_FP4_SIZES])
_E2M1_SIZES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
E2M1: Floats = np.concatenate([_E2M1_SIZES, -_E2M1_SIZES])


def affine_name(bits: int, group: int, scale_type: str) -> str:
    """Name of the affine format, e.g. `u4b_g128`."""
    return f"u{bits}{scale_type}_g{group}"


def _pairs(packed: Bytes) -> Bytes:
    """Two codes a byte, the low nibble first."""
    return fields(packed, 4, 1)


def _field(blocks: Bytes, nbytes: int, dtype: np.dtype[np.generic]) -> Floats:
    """The number at the start of each block, as f32[n, 1]."""
    return np.ascontiguousarray(blocks[:, :nbytes]).view(dtype).astype(np.float32)


def _affine(blocks: Bytes, bits: int, scale_type: np.dtype[np.generic]) -> Floats:
    codes = _pairs(blocks[:, 4:]) if bits == 4 else blocks[:, 4:]
    centred = codes.astype(np.int16) - blocks[:, 2:3].astype(np.int16)
    return _field(blocks, 2, scale_type) * centred.astype(np.float32)


def _f8(blocks: Bytes) -> Floats:
    codes = np.ascontiguousarray(blocks[:, 4:]).view(ml_dtypes.float8_e4m3fn)
    return _field(blocks, 4, np.dtype(np.float32)) * codes.astype(np.float32)


def _table(blocks: Bytes, table: NDArray[np.float32]) -> Floats:
    return _field(blocks, 4, np.dtype(np.float32)) * table[_pairs(blocks[:, 4:])]


def _mxfp4(blocks: Bytes) -> Floats:
    scale = _field(blocks, 1, np.dtype(ml_dtypes.float8_e8m0fnu))
    return scale * E2M1[fields(blocks[:, 1:], 4, 16)]


CHECKPOINT_FORMATS: dict[BlockFormat, Callable[[Bytes], Floats]] = {
    **{
        BlockFormat(affine_name(bits, group, letter), group, 4 + group * bits // 8): partial(
            _affine, bits=bits, scale_type=dtype
        )
        for bits in (4, 8)
        for letter, dtype in SCALE_TYPES.items()
        for group in GROUPS
    },
    BlockFormat("f8_g128", 128, 132): _f8,
    BlockFormat("nf4_g64", 64, 36): partial(_table, table=NF4),
    BlockFormat("fp4_g64", 64, 36): partial(_table, table=FP4),
    BlockFormat("mxfp4", 32, 17): _mxfp4,
}
