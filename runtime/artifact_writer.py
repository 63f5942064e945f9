"""Write an artifact so that it is there in full or not at all.

Everything goes to `<name>.partial-<pid>` beside the output, which is renamed at the end. Whatever
stops the work (an error, a full disk, Ctrl-C) removes the partial folder and leaves an older
artifact as it was.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from inferc.errors import ArtifactError
from inferc.runtime.artifact import (
    MANIFEST_NAME,
    Manifest,
    artifact_path,
    check_manifest,
    manifest_digest,
    read_manifest,
)

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


def write_artifact(
    output: Path | str, fill: Callable[[Path], Manifest], *, overwrite: bool = False
) -> Manifest:
    """Let `fill` write all files into a partial folder, then digest, seal and rename it.

    `fill` returns the manifest without digests; the complete one is written and returned.
    """
    output = Path(os.path.abspath(output))
    check_output(output, overwrite=overwrite)
    partial = output.with_name(f"{output.name}.partial-{os.getpid()}")
    _remove_abandoned(output)
    with _explained(output):
        try:
            partial.mkdir(parents=True)
            manifest = _seal(partial, fill(partial))
            _swap(partial, output)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return manifest


def check_output(output: Path | str, *, overwrite: bool) -> None:
    """Refuse an output that cannot be written, before hours of work go into it."""
    output = Path(os.path.abspath(output))
    parent = next(folder for folder in output.parents if folder.exists())
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ArtifactError(f"{parent}: the folder is read-only; choose another output.")
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not (output / MANIFEST_NAME).is_file():
        raise ArtifactError(
            f"{output}: exists and is not an inferc artifact, so it will not be replaced."
            " Choose another output."
        )
    if not overwrite:
        raise ArtifactError(f"{output}: exists already. Choose another output, or overwrite it.")


def add_file(folder: Path | str, relative: str, content: bytes) -> None:
    """Add or replace one file of a finished artifact, keeping its digests true.

    The manifest forgets an older file of that name first: whenever the work is stopped, the
    artifact is whole, with the older file, without it, or with the new one.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    check_manifest(folder, manifest)  # or the new digest would vouch for damage
    others = {name: digest for name, digest in manifest.files.items() if name != relative}
    with _explained(folder):
        path = artifact_path(folder, relative)
        path.parent.mkdir(parents=True, exist_ok=True)
        if relative in manifest.files:
            _replace_manifest(folder, replace(manifest, files=others))
        _replace_file(path, content)
        files = {**others, relative: hashlib.sha256(content).hexdigest()}
        _replace_manifest(folder, replace(manifest, files=files))


def _replace_manifest(folder: Path, manifest: Manifest) -> None:
    _replace_file(folder / MANIFEST_NAME, _with_digest(manifest).to_json().encode())


def _seal(folder: Path, manifest: Manifest) -> Manifest:
    """Record the digest of every file, write the manifest last."""
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            files[path.relative_to(folder).as_posix()] = digest
    targets = tuple(replace(target, sha256=files[target.library]) for target in manifest.targets)
    sealed = _with_digest(replace(manifest, targets=targets, files=files))
    (folder / MANIFEST_NAME).write_text(sealed.to_json(), encoding="utf-8")
    return sealed


def _with_digest(manifest: Manifest) -> Manifest:
    return replace(manifest, sha256=manifest_digest(json.loads(manifest.to_json())))


def _swap(partial: Path, output: Path) -> None:
    """Rename into place; an older artifact is moved aside first and put back on failure."""
    if not output.exists():
        partial.rename(output)
        return
    aside = output.with_name(f"{output.name}.old-{os.getpid()}")
    output.rename(aside)
    try:
        partial.rename(output)
    except BaseException:
        aside.rename(output)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _replace_file(path: Path, content: bytes) -> None:
    temporary = path.with_name(f"{path.name}.partial-{os.getpid()}")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _remove_abandoned(output: Path) -> None:
    """Partial folders of processes that were killed outright hold gigabytes; sweep them."""
    if not output.parent.is_dir():
        return
    for folder in output.parent.glob(f"{output.name}.partial-*"):
        suffix = folder.name.rpartition("-")[2]
        if suffix.isdigit() and not _is_alive(int(suffix)):
            shutil.rmtree(folder, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


@contextmanager
def _explained(output: Path) -> Iterator[None]:
    """Turn the two common failures of the file system into one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise ArtifactError(
                f"{output}: the disk is full ({_free_mib(output)} MiB free). Nothing was left"
                " behind; free some space or choose another output."
            ) from error
        if error.errno in _FORBIDDEN:
            raise ArtifactError(
                f"{error.filename or output}: cannot be written ({error.strerror});"
                " choose another output."
            ) from error
        raise


def _free_mib(output: Path) -> int:
    parent = next(folder for folder in output.parents if folder.exists())
    return shutil.disk_usage(parent).free >> 20
