"""Compiled pieces by content: a key is a digest of everything that is baked into the piece."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from inferc.errors import ToolchainError


def default_root() -> Path:
    """`$INFERC_CACHE`, else `~/.cache/inferc`."""
    override = os.environ.get("INFERC_CACHE")
    return Path(override) if override else Path.home() / ".cache" / "inferc"


def digest(key: Any) -> str:
    """Hex digest of a frozen dataclass of plain data: its class name and every field."""
    if not dataclasses.is_dataclass(key) or isinstance(key, type):
        raise TypeError(f"a cache key is a dataclass instance, found {key!r}")
    text = json.dumps([type(key).__name__, dataclasses.asdict(key)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def digest_files(paths: list[Path]) -> str:
    """Hex digest of the names and contents of files."""
    total = hashlib.sha256()
    for path in sorted(paths):
        content = path.read_bytes()
        total.update(f"{path.name}\0{len(content)}\0".encode() + content)
    return total.hexdigest()


@dataclasses.dataclass(frozen=True)
class Cache:
    """A folder of files named by digest. Safe for several processes: files appear by rename."""

    root: Path

    def find(self, key: str, suffix: str) -> Path | None:
        """The cached file, or None."""
        path = self._path(key, suffix)
        return path if path.is_file() else None

    def store(self, key: str, suffix: str, make: Callable[[Path], None]) -> Path:
        """The cached file, made by `make(temporary path)` when it is not there yet."""
        path = self._path(key, suffix)
        if path.is_file():
            return path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path.parent, prefix="making-") as folder:
                made = Path(folder) / f"piece{suffix}"
                make(made)
                os.replace(made, path)
        except OSError as error:
            raise ToolchainError(
                f"{path.parent}: the compile cache cannot be written ({error.strerror})."
                " Set INFERC_CACHE to a writable folder with free space."
            ) from error
        return path

    def _path(self, key: str, suffix: str) -> Path:
        return self.root / key[:2] / f"{key}{suffix}"
