"""What a block format is, and fields that blocks are made of."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


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


def halves(blocks: Bytes, start: int) -> Floats:
    """The float16 at byte `start` of each block, as f32[n, 1]."""
    field = np.ascontiguousarray(blocks[:, start : start + 2])
    return field.view(np.float16).astype(np.float32)


def fields(packed: Bytes, bits: int, run: int) -> Bytes:
    """Split bytes into `bits`-wide fields: each run of `run` bytes gives all low fields first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape(1, 1, -1, 1)
    fields = (packed.reshape(len(packed), -1, 1, run) >> shifts) & np.uint8((1 << bits) - 1)
    return fields.reshape(len(packed), -1)


def bits(packed: Bytes) -> Bytes:
    """One bit an element, least significant first."""
    return np.unpackbits(packed, axis=-1, bitorder="little")
