"""Digests of an artifact are compared once on a machine, not at every load.

What was compared is noted beside the compile cache: name, size, inode and times of every file. A
program can set the time of a file's content but not that of its status (ctime), so a file that has
been written to since has another note. Without a note (a new machine, a copy, a cache that cannot
be written) every byte is read, as at the first load.
"""

import hashlib
import os
import time
from pathlib import Path

from inferc.runtime.artifact import MANIFEST_NAME, Manifest, artifact_path, check_digests

_SETTLED_NS = 2_000_000_000
"""A file written to within this time may be written to again without a newer time."""


def check_once(folder: Path, manifest: Manifest) -> None:
    """Compare every file with its digest, unless these very files have been compared before."""
    note = _note_path(folder)
    now_ns = time.time_ns()
    before = _describe(folder, manifest)
    if before is not None and _read(note) == _digest(before):
        return
    check_digests(folder, manifest)
    after = _describe(folder, manifest)
    if before is not None and before == after and _newest_ns(before) < now_ns - _SETTLED_NS:
        _write(note, _digest(before))


_Files = tuple[tuple[str, int, int, int, int, int], ...]
"""Name, device, inode, size, and the times of content and status in ns, of each file."""


def _describe(folder: Path, manifest: Manifest) -> _Files | None:
    """None where a file is missing: then comparing will say so."""
    files = []
    for relative in (MANIFEST_NAME, *sorted(manifest.files)):
        try:
            found = os.stat(artifact_path(folder, relative))
        except OSError:
            return None
        files.append(
            (relative, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns,
             found.st_ctime_ns)
        )  # fmt: skip
    return tuple(files)


def _newest_ns(files: _Files) -> int:
    return max(changed_ns for *_, changed_ns in files)


def _digest(files: _Files) -> str:
    return hashlib.sha256(repr(files).encode()).hexdigest()


def _note_path(folder: Path) -> Path:
    """`$INFERC_CACHE`, else `~/.cache/inferc`, as for compiled pieces; a note for each folder."""
    override = os.environ.get("INFERC_CACHE")
    root = Path(override) if override else Path(os.path.expanduser("~")) / ".cache" / "inferc"
    name = hashlib.sha256(os.fsencode(os.path.realpath(folder))).hexdigest()
    return root / "checked" / name


def _read(note: Path) -> str | None:
    try:
        return note.read_text(encoding="ascii")
    except (OSError, ValueError):
        return None


def _write(note: Path, text: str) -> None:
    """A cache that cannot be written costs time at the next load, nothing else."""
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        temporary = note.with_name(f"{note.name}.{os.getpid()}")
        temporary.write_text(text, encoding="ascii")
        temporary.replace(note)
    except OSError:
        return
