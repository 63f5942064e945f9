"""Make block-quantised rows: simple encoders for the 32-element formats, random blocks for all.

inferc never requantises a model: this exists so that tests, examples and benchmarks can make
weights of every format. The encoders give the same bytes as ggml's reference encoders.
"""

from collections.abc import Callable

import numpy as np

from inferc.ir.blocks import Bytes, Floats, block_format

# Byte offsets of the float16 fields (scale, and minimum where there is one) of each format.
_HALF_FIELDS: dict[str, tuple[int, ...]] = {
    "q4_0": (0,),
    "q4_1": (0, 2),
    "q5_0": (0,),
    "q5_1": (0, 2),
    "q8_0": (0,),
    "q2_k": (80, 82),
    "q3_k": (108,),
    "q4_k": (0, 2),
    "q5_k": (0, 2),
    "q6_k": (208,),
}


def random_blocks(
    name: str, rows: int, elements: int, rng: np.random.Generator, *, scale: float = 0.05
) -> Bytes:
    """Valid random rows `u8[rows, row_bytes]`: all bits random, float16 fields of size `scale`.

    Values come out as scale times a small integer, so a smaller `scale` suits the K formats, whose
    sub-scales multiply it by up to 63.
    """
    fmt = block_format(name)
    blocks = rng.integers(
        0, 256, (rows * (fmt.row_bytes(elements) // fmt.block_bytes), fmt.block_bytes), np.uint8
    )
    for start in _HALF_FIELDS[name]:
        halves = (rng.standard_normal(len(blocks)) * scale).astype(np.float16)
        blocks[:, start : start + 2] = halves.view(np.uint8).reshape(-1, 2)
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
