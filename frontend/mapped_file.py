"""A read-only memory map of a weight file, with bounds-checked views and early refusals."""

import mmap
from pathlib import Path

import numpy as np

from inferc.errors import CompileError
from inferc.ir.blocks import Bytes

_LFS_POINTER = b"version https://git-lfs"


class MappedFile:
    """The bytes of one file; views share the mapping, which lives as long as any of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map = _map(path)
        self._bytes: Bytes = np.frombuffer(self._map, np.uint8)
        if self._map[: len(_LFS_POINTER)] == _LFS_POINTER:
            raise CompileError(
                f"{path} is a Git LFS pointer, not the weights themselves: run `git lfs pull` in "
                "its repository, or download the file again."
            )

    @property
    def size_bytes(self) -> int:
        """Length of the file."""
        return len(self._map)

    @property
    def buffer(self) -> mmap.mmap:
        """The mapping itself, for parsers that read many small fields."""
        return self._map

    def view(self, offset: int, nbytes: int) -> Bytes:
        """The bytes `[offset, offset + nbytes)`, not copied."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.size_bytes:
            raise ValueError(f"bytes [{offset}, {offset + nbytes}) lie outside {self.path}")
        return self._bytes[offset : offset + nbytes]

    def release(self, offset: int, nbytes: int) -> None:
        """Let the system drop the pages wholly inside the range; they can be read again."""
        page = mmap.PAGESIZE
        start, end = -(-offset // page) * page, (offset + nbytes) // page * page
        if end > start and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, start, end - start)


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                raise CompileError(f"{path} is empty: an interrupted download? Get it again.")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise CompileError(f"Cannot read {path}: {error.strerror}.") from error
