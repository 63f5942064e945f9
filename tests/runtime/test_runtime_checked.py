"""Digests are compared once, and again whenever a file may have changed."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from inferc.errors import ArtifactError
from inferc.runtime import checked
from inferc.runtime.artifact import read_manifest
from inferc.runtime.artifact_writer import add_file
from inferc.runtime.checked import check_once

_WEIGHTS = "weights/packed.safetensors"
_SINCE_LONG = -(10**15)


@pytest.fixture
def copy(toy_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INFERC_CACHE", str(tmp_path / "cache"))
    return Path(shutil.copytree(toy_artifact, tmp_path / "copy.inferc"))


@pytest.fixture
def comparisons(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Folders whose bytes were read."""
    seen: list[Path] = []
    compare = checked.check_digests

    def counted(folder: Path, manifest: object) -> None:
        seen.append(folder)
        compare(folder, manifest)

    monkeypatch.setattr(checked, "check_digests", counted)
    return seen


def _check(folder: Path) -> None:
    check_once(folder, read_manifest(folder))


def test_the_second_load_reads_no_bytes(
    copy: Path, comparisons: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked, "_SETTLED_NS", _SINCE_LONG)
    for _ in range(3):
        _check(copy)
    assert comparisons == [copy]


def test_files_written_a_moment_ago_are_not_noted(copy: Path, comparisons: list[Path]) -> None:
    """They may be written to again within the resolution of the file system's clock."""
    os.utime(copy / _WEIGHTS, ns=(0, 0))  # its content looks old, its status does not
    for _ in range(2):
        _check(copy)
    assert len(comparisons) == 2


def _flip(path: Path) -> None:
    """Change a bit and set the times of the content back."""
    time.sleep(0.02)  # past the tick of the clock in which the file was made
    times = path.stat()
    content = bytearray(path.read_bytes())
    content[70] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _replace(path: Path) -> None:
    """Another file of the same size and times under the same name."""
    other = path.with_name("other")
    shutil.copy2(path, other)
    _flip(other)
    other.replace(path)


@pytest.mark.parametrize("damage", [_flip, _replace, Path.unlink])
def test_a_changed_file_is_found_after_a_check(
    copy: Path, damage: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked, "_SETTLED_NS", _SINCE_LONG)
    _check(copy)
    damage(copy / _WEIGHTS)
    with pytest.raises(ArtifactError, match=r"packed\.safetensors"):
        _check(copy)
    with pytest.raises(ArtifactError, match=r"packed\.safetensors"):
        _check(copy)  # a failed check leaves no note


def test_an_added_file_is_compared(
    copy: Path, comparisons: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked, "_SETTLED_NS", _SINCE_LONG)
    _check(copy)
    add_file(copy, "verification.json", b"{}")
    _check(copy)
    assert len(comparisons) == 2


def test_a_cache_that_cannot_be_written_costs_time_only(
    copy: Path, comparisons: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked, "_SETTLED_NS", _SINCE_LONG)
    (tmp_path / "file").touch()
    monkeypatch.setenv("INFERC_CACHE", str(tmp_path / "file"))
    for _ in range(2):
        _check(copy)
    assert len(comparisons) == 2
