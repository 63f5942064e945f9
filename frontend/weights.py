"""Stored weights: names to lazily read tensors, the same for safetensors and GGUF.

Nothing is copied here. A tensor's bytes stay in the file until `read`, and `release` gives the
pages back, so a compile holds one tensor at a time however large the model is.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from inferc.errors import CompileError
from inferc.frontend.mapped_file import MappedFile
from inferc.ir.blocks import FORMATS, Floats, block_format, dequantize

DENSE_DTYPES: dict[str, np.dtype[np.generic]] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
}

# May lie in a file as long as no parameter needs them (masks, position ids, counters).
FOREIGN_DTYPE_BYTES: dict[str, int] = {
    "f64": 8, "i64": 8, "u64": 8, "i32": 4, "u32": 4, "i16": 2, "u16": 2, "i8": 1, "u8": 1,
    "bool": 1, "f8_e4m3": 1, "f8_e5m2": 1, "f8_e8m0": 1,
}  # fmt: skip


# What some of these hold, for those who know what the numbers mean.
_NUMBERS: dict[str, np.dtype[np.generic]] = {
    "f64": np.dtype(np.float64), "i64": np.dtype(np.int64), "u64": np.dtype(np.uint64),
    "i32": np.dtype(np.int32), "u32": np.dtype(np.uint32), "i8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8), "f8_e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8_e8m0": np.dtype(ml_dtypes.float8_e8m0fnu),
}  # fmt: skip


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a file. `dtype` is "f32", "f16", "bf16" or the name of a block format."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    """In elements, row-major, K (the axis along which blocks lie) last."""
    file: Path
    nbytes: int
    _map: MappedFile = field(repr=False, compare=False)
    _offset: int = field(repr=False, compare=False)

    @property
    def readable(self) -> bool:
        """Whether inferc can compute with this type."""
        return self.dtype in DENSE_DTYPES or self.dtype in FORMATS

    @property
    def is_blocks(self) -> bool:
        """Whether `read` gives raw rows of blocks instead of elements."""
        return self.dtype in FORMATS

    def read(self) -> NDArray[np.generic]:
        """The stored values, not copied: `shape` if dense, raw rows u8[..., row_bytes] if not."""
        raw = self._map.view(self._offset, self.nbytes)
        if self.is_blocks:
            return raw.reshape(*self.shape[:-1], block_format(self.dtype).row_bytes(self.shape[-1]))
        if self.dtype not in DENSE_DTYPES:
            raise CompileError(
                f"Tensor {self.name} in {self.file} is stored as {self.dtype}, which cannot be "
                f"read as a weight; supported: {', '.join([*DENSE_DTYPES, *FORMATS])}."
            )
        return raw.view(DENSE_DTYPES[self.dtype]).reshape(self.shape)

    def numbers(self) -> NDArray[np.generic]:
        """The values of any type, not copied; for tensors that are no weights by themselves."""
        if self.readable:
            return self.read()
        return self.raw().view(_NUMBERS[self.dtype]).reshape(self.shape)

    def raw(self) -> NDArray[np.uint8]:
        """The bytes as they lie in the file."""
        return self._map.view(self._offset, self.nbytes)

    def entry_reader(self) -> Callable[[int], NDArray[np.generic]] | None:
        """Reads one entry of the first axis; None where only the whole can be read."""
        return lambda index: self.read()[index]  # mapped, so nothing else of it is touched

    def read_float32(self) -> Floats:
        """A float32 copy, dequantised or widened; exact."""
        if self.is_blocks:
            return dequantize(self.dtype, self.read().view(np.uint8))
        return self.read().astype(np.float32)

    def same_bytes(self, other: "StoredTensor") -> bool:
        """Whether both hold the same type, shape and bytes."""
        if (self.dtype, self.shape) != (other.dtype, other.shape):
            return False
        ours = self._map.view(self._offset, self.nbytes)
        return bool(np.array_equal(ours, other._map.view(other._offset, other.nbytes)))

    def release(self) -> None:
        """Drop the pages read so far; a later `read` maps them again."""
        self._map.release(self._offset, self.nbytes)


@dataclass(frozen=True)
class WeightStore:
    """All tensors of one model, by the names its file gives them."""

    path: Path
    """The file or folder that the user named, for messages."""
    tensors: Mapping[str, StoredTensor]

    def __getitem__(self, name: str) -> StoredTensor:
        return self.tensors[name]

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    @property
    def total_bytes(self) -> int:
        """Stored bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def listed(names: Iterable[str]) -> str:
    """All names for an error message; those that differ only in a layer number become one."""
    groups: dict[str, list[tuple[str, int]]] = {}
    for name in names:
        match = _LAYER.search(name)
        pattern = f"{name[: match.start()]}.*.{name[match.end() :]}" if match else name
        groups.setdefault(pattern, []).append((name, int(match[1]) if match else 0))
    return ", ".join(
        f"{pattern} (* = {_ranges(sorted(layer for _, layer in group))})"
        if len(group) > 1
        else group[0][0]
        for pattern, group in groups.items()
    )


_LAYER = re.compile(r"\.(\d+)\.")


def _ranges(numbers: list[int]) -> str:
    """Ascending numbers as "0-3, 7"."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number <= spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
