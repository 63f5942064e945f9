"""Codes of four or eight bits out of 32-bit words."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from inferc.ir.blocks import Bytes
from inferc.ir.blocks_build import nibbles_of


def codes_of_words(words: NDArray[np.generic], bits: int) -> Bytes:
    """Words i32[..] to codes u8[.., 32 / bits], the one in the lowest bits first."""
    lanes = np.ascontiguousarray(words).view(np.uint8).reshape(*words.shape, 4)
    return lanes if bits == 8 else nibbles_of(lanes)
