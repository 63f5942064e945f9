"""Sources to a step library: compile what the cache does not have, link."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from inferc.codegen.cache import Cache, digest, digest_files
from inferc.codegen.render import INCLUDE
from inferc.codegen.row_objects import row_objects
from inferc.codegen.targets import CpuTarget
from inferc.codegen.toolchain import COMMON_FLAGS, Compiler

Progress = Callable[[str, int, int], None]  # what, done, of how many


@dataclass(frozen=True)
class ObjectKey:
    """Everything that is baked into an object file. Comments above the code are not."""

    code: str
    includes: str
    target: str
    flags: tuple[str, ...]
    compiler: str


@dataclass(frozen=True)
class Source:
    """A C++ file: the text that is kept, and the part of it that decides what is compiled."""

    file_name: str
    text: str
    code: str


def build_library(
    sources: Sequence[Source],
    rows: Sequence[tuple[str, str]],
    output: Path,
    *,
    target: CpuTarget,
    compiler: Compiler,
    cache: Cache,
    progress: Progress,
) -> None:
    """Compile sources and row bodies and link them to `output`."""
    objects = compile_sources(sources, target, compiler, cache, progress)
    lowered = row_objects(rows, target, cache)
    progress("linking", len(sources), len(sources))
    ordered = [objects[s.file_name] for s in sources] + [lowered[name] for name, _ in rows]
    with tempfile.TemporaryDirectory(prefix="inferc-build-") as folder:
        linked = Path(folder) / output.name
        compiler.link_library(ordered, linked)
        shutil.copyfile(linked, output)  # a full disk is then an OSError, not a linker's message
        shutil.copymode(linked, output)


def compile_sources(
    sources: Sequence[Source],
    target: CpuTarget,
    compiler: Compiler,
    cache: Cache,
    progress: Progress,
) -> Mapping[str, Path]:
    """Objects by file name, compiled in parallel where they are not cached."""
    includes = digest_files(sorted(INCLUDE.glob("inferc/*.h")))
    flags = (*COMMON_FLAGS, *compiler.target_flags(target))
    done: dict[str, Path] = {}

    def build(source: Source) -> tuple[str, Path]:
        key = ObjectKey(source.code, includes, target.name, flags, compiler.version)
        make = _Make(source, target, compiler)
        return source.file_name, cache.store(digest(key), ".o", make)

    with ThreadPoolExecutor(max_workers=max(1, os.cpu_count() or 1)) as pool:
        for file_name, path in pool.map(build, sources):
            done[file_name] = path
            progress(file_name, len(done), len(sources))
    return done


@dataclass(frozen=True)
class _Make:
    """Compiles one source into a given path."""

    source: Source
    target: CpuTarget
    compiler: Compiler

    def __call__(self, output: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="inferc-build-") as folder:
            path = Path(folder) / self.source.file_name
            path.write_text(self.source.code, encoding="utf-8")
            self.compiler.compile_object(path, output, self.target, INCLUDE, self.source.file_name)
