"""Block-quantised weight formats: their sizes, and how a row of blocks becomes float32.

A row of K elements is stored as K / block_elements blocks; blocks never cross rows, so permuting,
slicing or concatenating rows is safe on the raw bytes. `dequantize` follows the order of float32
operations of ggml's own decoders, bit for bit: it is the definition that packing, kernels and the
reference interpreter are tested against.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

_CHUNK_ELEMENTS = 1 << 20  # bounds the temporaries of one decode to a few MiB


@dataclass(frozen=True)
class BlockFormat:
    """One block format: `block_elements` values in `block_bytes` bytes."""

    name: str
    block_elements: int
    block_bytes: int

    @property
    def bits_per_element(self) -> float:
        """Stored bits an element, scales included."""
        return 8 * self.block_bytes / self.block_elements

    def row_bytes(self, elements: int) -> int:
        """Bytes of a row of `elements` values; refuses a row that is not whole blocks."""
        blocks, rest = divmod(elements, self.block_elements)
        if rest:
            raise ValueError(
                f"a row of {elements} elements is no whole number of {self.name} blocks "
                f"of {self.block_elements}"
            )
        return blocks * self.block_bytes

    def row_elements(self, row_bytes: int) -> int:
        """Elements of a row of `row_bytes` bytes; the inverse of `row_bytes`."""
        blocks, rest = divmod(row_bytes, self.block_bytes)
        if rest:
            raise ValueError(
                f"a row of {row_bytes} bytes is no whole number of {self.name} blocks "
                f"of {self.block_bytes} bytes"
            )
        return blocks * self.block_elements


FORMATS: dict[str, BlockFormat] = {
    f.name: f
    for f in (
        BlockFormat("q4_0", 32, 18),
        BlockFormat("q4_1", 32, 20),
        BlockFormat("q5_0", 32, 22),
        BlockFormat("q5_1", 32, 24),
        BlockFormat("q8_0", 32, 34),
        BlockFormat("q2_k", 256, 84),
        BlockFormat("q3_k", 256, 110),
        BlockFormat("q4_k", 256, 144),
        BlockFormat("q5_k", 256, 176),
        BlockFormat("q6_k", 256, 210),
    )
}


def block_format(name: str) -> BlockFormat:
    """The format called `name`."""
    if name not in FORMATS:
        raise ValueError(f"unknown block format {name!r}; known: {', '.join(FORMATS)}")
    return FORMATS[name]


def dequantize(name: str, raw: Bytes) -> Floats:
    """Decode raw rows `u8[..., row_bytes]` to `f32[..., K]`."""
    fmt = block_format(name)
    if raw.dtype != np.uint8:
        raise ValueError(f"raw {name} rows must be uint8, not {raw.dtype}")
    elements = fmt.row_elements(raw.shape[-1])
    blocks = np.ascontiguousarray(raw).reshape(-1, fmt.block_bytes)
    out = np.empty((len(blocks), fmt.block_elements), np.float32)
    decode, step = _DECODERS[name], _CHUNK_ELEMENTS // fmt.block_elements
    for start in range(0, len(blocks), step):
        out[start : start + step] = decode(blocks[start : start + step])
    return out.reshape(*raw.shape[:-1], elements)


# Decoders: blocks u8[n, block_bytes] -> f32[n, block_elements], fields in the order of ggml's.


def _halves(blocks: Bytes, start: int) -> Floats:
    """The float16 at byte `start` of each block, as f32[n, 1]."""
    field = np.ascontiguousarray(blocks[:, start : start + 2])
    return field.view(np.float16).astype(np.float32)


def _fields(packed: Bytes, bits: int, run: int) -> Bytes:
    """Split bytes into `bits`-wide fields: each run of `run` bytes gives all low fields first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape(1, 1, -1, 1)
    fields = (packed.reshape(len(packed), -1, 1, run) >> shifts) & np.uint8((1 << bits) - 1)
    return fields.reshape(len(packed), -1)


def _bits(packed: Bytes) -> Bytes:
    """One bit an element, least significant first."""
    return np.unpackbits(packed, axis=-1, bitorder="little")


def _q4_0(blocks: Bytes) -> Floats:
    q = _fields(blocks[:, 2:], 4, 16).astype(np.int8) - np.int8(8)
    return _halves(blocks, 0) * q.astype(np.float32)


def _q4_1(blocks: Bytes) -> Floats:
    q = _fields(blocks[:, 4:], 4, 16).astype(np.float32)
    return _halves(blocks, 0) * q + _halves(blocks, 2)


def _q5_0(blocks: Bytes) -> Floats:
    q = _fields(blocks[:, 6:], 4, 16) | (_bits(blocks[:, 2:6]) << np.uint8(4))
    return _halves(blocks, 0) * (q.astype(np.int8) - np.int8(16)).astype(np.float32)


def _q5_1(blocks: Bytes) -> Floats:
    q = _fields(blocks[:, 8:], 4, 16) | (_bits(blocks[:, 4:8]) << np.uint8(4))
    return _halves(blocks, 0) * q.astype(np.float32) + _halves(blocks, 2)


def _q8_0(blocks: Bytes) -> Floats:
    return _halves(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _scaled(scale: Floats, q: NDArray[np.generic], minimum: Floats | None = None) -> Floats:
    """`scale * q - minimum` with one scale (and minimum) for each equal group of q."""
    grouped = q.reshape(len(scale), scale.shape[1], -1).astype(np.float32)
    out = scale[:, :, None] * grouped
    if minimum is not None:
        out = out - minimum[:, :, None]
    return out.reshape(len(scale), -1)


def _q2_k(blocks: Bytes) -> Floats:
    scales = blocks[:, :16]
    scale = _halves(blocks, 80) * (scales & np.uint8(15)).astype(np.float32)
    minimum = _halves(blocks, 82) * (scales >> np.uint8(4)).astype(np.float32)
    return _scaled(scale, _fields(blocks[:, 16:80], 2, 32), minimum)


def _q3_k(blocks: Bytes) -> Floats:
    # 16 six-bit scales: 8 bytes of low nibbles, then 4 bytes holding the two high bits of each.
    low, high = _fields(blocks[:, 96:104], 4, 8), _fields(blocks[:, 104:108], 2, 4)
    scales = (low | (high << np.uint8(4))).astype(np.int8) - np.int8(32)
    # A *clear* bit of the high mask subtracts 4.
    high_clear = _fields(blocks[:, :32], 1, 32) ^ np.uint8(1)
    q = _fields(blocks[:, 32:96], 2, 32).astype(np.int8) - (high_clear << np.uint8(2)).astype(
        np.int8
    )
    return _scaled(_halves(blocks, 108) * scales.astype(np.float32), q)


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
        _halves(blocks, 0) * scale.astype(np.float32),
        _fields(blocks[:, 16:], 4, 32),
        _halves(blocks, 2) * minimum.astype(np.float32),
    )


def _q5_k(blocks: Bytes) -> Floats:
    scale, minimum = scales_and_minimums(blocks[:, 4:16])
    q = _fields(blocks[:, 48:], 4, 32) | (_fields(blocks[:, 16:48], 1, 32) << np.uint8(4))
    return _scaled(
        _halves(blocks, 0) * scale.astype(np.float32),
        q,
        _halves(blocks, 2) * minimum.astype(np.float32),
    )


def _q6_k(blocks: Bytes) -> Floats:
    q = _fields(blocks[:, :128], 4, 64) | (_fields(blocks[:, 128:192], 2, 32) << np.uint8(4))
    scale = _halves(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return _scaled(scale, q.astype(np.int8) - np.int8(32))


_DECODERS: dict[str, Callable[[Bytes], Floats]] = {
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q5_0": _q5_0,
    "q5_1": _q5_1,
    "q8_0": _q8_0,
    "q2_k": _q2_k,
    "q3_k": _q3_k,
    "q4_k": _q4_k,
    "q5_k": _q5_k,
    "q6_k": _q6_k,
}
