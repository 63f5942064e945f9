"""Tensors of a weight store whose bytes are made when they are read: converted, or in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from inferc.frontend.mapped_file import MappedFile
from inferc.frontend.weights import StoredTensor

_NO_FILE = cast(MappedFile, None)  # never looked at: `read` and `release` are overridden


@dataclass(frozen=True)
class ComputedTensor(StoredTensor):
    """A tensor whose bytes are made from something else when it is read, and not kept."""

    compute: Callable[[], NDArray[np.generic]] = field(repr=False, compare=False)
    drop: Callable[[], None] = field(repr=False, compare=False)

    @classmethod
    def of(
        cls, name: str, dtype: str, shape: tuple[int, ...], file: Path, nbytes: int,
        compute: Callable[[], NDArray[np.generic]], drop: Callable[[], None] = lambda: None,
    ) -> ComputedTensor:  # fmt: skip
        """A tensor of `nbytes` stored bytes; `drop` lets go of what `compute` has mapped."""
        return cls(name, dtype, shape, file, nbytes, _NO_FILE, 0, compute, drop)

    @classmethod
    def of_array(cls, name: str, array: NDArray[np.generic]) -> ComputedTensor:
        """A float32 array that is in memory anyway."""
        wide = np.ascontiguousarray(array, np.float32)
        return cls.of(name, "f32", wide.shape, Path(name), wide.nbytes, lambda: wide)

    @property
    def readable(self) -> bool:
        """Whoever computes a tensor knows what its numbers mean."""
        return True

    def read(self) -> NDArray[np.generic]:
        """The values, or raw rows of blocks."""
        return self.compute()

    def entry_reader(self) -> Callable[[int], NDArray[np.generic]] | None:
        """None: it is made as a whole."""
        return None

    def same_bytes(self, other: StoredTensor) -> bool:
        """Whether both hold the same type, shape and bytes."""
        same_kind = (self.dtype, self.shape) == (other.dtype, other.shape)
        return same_kind and self.read().tobytes() == other.read().tobytes()

    def release(self) -> None:
        """Drop what the sources have mapped."""
        self.drop()
