"""Make block-quantised rows: encoders for the 32-element formats of ggml, random blocks for all.

inferc never requantises a model: this exists so that tests, examples and benchmarks can make
weights of every format. The encoders give the same bytes as ggml's reference encoders.
"""

from collections.abc import Callable

import ml_dtypes
import numpy as np

from inferc.ir.block_format import Bytes, Floats
from inferc.ir.blocks import block_format
from inferc.ir.blocks_checkpoint import GROUPS, SCALE_TYPES, affine_name

_F16 = np.dtype(np.float16)
# Type and byte offsets of the scales (and minima) of each format.
_SCALE_FIELDS: dict[str, tuple[np.dtype[np.generic], tuple[int, ...]]] = {
    "q4_0": (_F16, (0,)),
    "q4_1": (_F16, (0, 2)),
    "q5_0": (_F16, (0,)),
    "q5_1": (_F16, (0, 2)),
    "q8_0": (_F16, (0,)),
    "q2_k": (_F16, (80, 82)),
    "q3_k": (_F16, (108,)),
    "q4_k": (_F16, (0, 2)),
    "q5_k": (_F16, (0, 2)),
    "q6_k": (_F16, (208,)),
    **{
        affine_name(bits, group, letter): (dtype, (0,))
        for bits in (4, 8)
        for letter, dtype in SCALE_TYPES.items()
        for group in GROUPS
    },
    **dict.fromkeys(("f8_g128", "nf4_g64", "fp4_g64"), (np.dtype(np.float32), (0,))),
    "mxfp4": (np.dtype(ml_dtypes.float8_e8m0fnu), (0,)),
}


def random_blocks(
    name: str, rows: int, elements: int, rng: np.random.Generator, *, scale: float = 0.05
) -> Bytes:
    """Valid random rows `u8[rows, row_bytes]`: all codes random, scales of size `scale`.

    Values come out as scale times a small integer, so a smaller `scale` suits the K formats, whose
    sub-scales multiply it by up to 63, and formats with eight bits. No value is NaN.
    """
    fmt = block_format(name)
    blocks = rng.integers(
        0, 256, (rows * (fmt.row_bytes(elements) // fmt.block_bytes), fmt.block_bytes), np.uint8
    )
    dtype, starts = _SCALE_FIELDS[name]
    for start in starts:
        values = rng.standard_normal(len(blocks)) * scale
        signed = np.abs(values) if name == "mxfp4" else values
        blocks[:, start : start + dtype.itemsize] = (
            signed.astype(dtype).view(np.uint8).reshape(-1, dtype.itemsize)
        )
    if name.startswith("u"):
        blocks[:, 2] &= np.uint8(15 if name.startswith("u4") else 255)
        blocks[:, 3] = 0
    if name == "f8_g128":
        codes = blocks[:, 4:]
        codes[codes & np.uint8(127) == 127] = 0  # NaN
    return blocks.reshape(rows, fmt.row_bytes(elements))


def quantize(name: str, values: Floats) -> Bytes:
    """Encode `f32[..., K]` to raw rows `u8[..., row_bytes]`; 32-element formats only."""
    if name not in _ENCODERS:
        raise ValueError(f"no encoder for {name!r}; there are: {', '.join(_ENCODERS)}")
    fmt = block_format(name)
    row_bytes = fmt.row_bytes(values.shape[-1])
    blocks = np.ascontiguousarray(values, np.float32).reshape(-1, fmt.block_elements)
    return _ENCODERS[name](blocks).reshape(*values.shape[:-1], row_bytes)


def _inverse(scale: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.where(scale == 0, np.float32(0), np.float32(1) / scale)


def _half_bytes(values: Floats) -> Bytes:
    return values.astype(np.float16).view(np.uint8)


def _pack_nibbles(q: Bytes) -> Bytes:
    return (q[:, :16] & np.uint8(15)) | (q[:, 16:] << np.uint8(4))


def _symmetric(blocks: Floats, bits: int) -> tuple[Bytes, Bytes]:
    """Scale so that the value of largest size becomes -2**(bits-1); gives (scale bytes, q)."""
    half = 1 << (bits - 1)
    largest = np.abs(blocks).argmax(axis=1, keepdims=True)
    scale = np.take_along_axis(blocks, largest, axis=1) / np.float32(-half)
    q = np.trunc(blocks * _inverse(scale) + np.float32(half + 0.5))
    return _half_bytes(scale), q.astype(np.uint8).clip(0, 2 * half - 1)


def _affine(blocks: Floats, bits: int) -> tuple[Bytes, Bytes]:
    """Scale from minimum to maximum; gives (scale and minimum bytes, q)."""
    minimum, top = blocks.min(axis=1, keepdims=True), (1 << bits) - 1
    scale = (blocks.max(axis=1, keepdims=True) - minimum) / np.float32(top)
    q = np.trunc((blocks - minimum) * _inverse(scale) + np.float32(0.5))
    header = np.concatenate([_half_bytes(scale), _half_bytes(minimum)], axis=1)
    return header, q.astype(np.uint8).clip(0, top)


def _four_bit(header: Bytes, q: Bytes) -> Bytes:
    return np.concatenate([header, _pack_nibbles(q)], axis=1)


def _five_bit(header: Bytes, q: Bytes) -> Bytes:
    high = np.packbits(q >> np.uint8(4), axis=1, bitorder="little")
    return np.concatenate([header, high, _pack_nibbles(q)], axis=1)


def _q8_0(blocks: Floats) -> Bytes:
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    scaled = blocks * _inverse(scale)
    # ggml rounds halves away from zero, numpy to even.
    floor = np.floor(np.abs(scaled))
    size = floor + np.floor(2 * (np.abs(scaled) - floor))
    q = (np.sign(scaled) * size).astype(np.int8).view(np.uint8)
    return np.concatenate([_half_bytes(scale), q], axis=1)


_ENCODERS: dict[str, Callable[[Floats], Bytes]] = {
    "q4_0": lambda blocks: _four_bit(*_symmetric(blocks, 4)),
    "q4_1": lambda blocks: _four_bit(*_affine(blocks, 4)),
    "q5_0": lambda blocks: _five_bit(*_symmetric(blocks, 5)),
    "q5_1": lambda blocks: _five_bit(*_affine(blocks, 5)),
    "q8_0": _q8_0,
}
