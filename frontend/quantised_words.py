"""Codes of four or eight bits in 32-bit words, rearranged as rows of bytes.

Rows of bytes are u8[n, K * bits / 8] with K along the row, of two codes a byte the low nibble
first: what a row of words along K is anyway, the first code in the lowest bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inferc.ir.blocks import Bytes
from inferc.ir.blocks_build import nibbles_of, pairs_of


def codes_of_words(words: NDArray[np.generic], bits: int) -> Bytes:
    """Words i32[..] to codes u8[.., 32 / bits], the one in the lowest bits first."""
    lanes = np.ascontiguousarray(words).view(np.uint8).reshape(*words.shape, 4)
    return lanes if bits == 8 else nibbles_of(lanes)


def rows_along(
    words: NDArray[np.generic], bits: int, order: NDArray[np.generic] | None = None
) -> Bytes:
    """Rows of bytes from i32[n, W], words of neighbours along K; with columns in another order."""
    packed = np.ascontiguousarray(words).view(np.uint8)
    if order is None:
        return packed
    codes = (packed if bits == 8 else nibbles_of(packed))[:, order]
    return codes if bits == 8 else pairs_of(codes)


def rows_across(
    words: NDArray[np.generic], bits: int, order: NDArray[np.generic] | None = None
) -> Bytes:
    """Rows of bytes from i32[W, n], words of neighbours along K, which is the first axis."""
    if order is None:
        return np.ascontiguousarray(words.T).view(np.uint8)
    each = 32 // bits
    codes = np.empty((len(words) * each, words.shape[1]), np.uint8)
    for i in range(each):
        codes[i::each] = _field(words, bits, i)
    return _turned(codes[order], bits)


def rows_of_columns(words: NDArray[np.generic], bits: int, places: Sequence[int]) -> Bytes:
    """Rows of bytes from i32[K, W], words of neighbours along n; code i of one is `places[i]`."""
    each = 32 // bits
    codes = np.empty((len(words), words.shape[1] * each), np.uint8)
    for i, place in enumerate(places):
        codes[:, place::each] = _field(words, bits, i)
    return _turned(codes, bits)


def _field(words: NDArray[np.generic], bits: int, index: int) -> Bytes:
    unsigned = words.view(np.uint32)
    return ((unsigned >> np.uint32(bits * index)) & np.uint32((1 << bits) - 1)).astype(np.uint8)


def _turned(codes: Bytes, bits: int) -> Bytes:
    """Rows of bytes from codes u8[K, n]."""
    packed = codes if bits == 8 else codes[::2] | codes[1::2] << np.uint8(4)
    return np.ascontiguousarray(packed.T)
