"""Sources to a step library: compile what the cache does not have, link."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from inferc.codegen.cache import Cache, digest, digest_files
from inferc.codegen.render import INCLUDE
from inferc.codegen.row_objects import row_objects
from inferc.codegen.targets import CpuTarget
from inferc.codegen.toolchain import COMMON_FLAGS, Compiler

Progress = Callable[[str, int, int], None]  # what, done, of how many
Made = TypeVar("Made")


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
    link(ordered, output, compiler)


def link(objects: Sequence[Path], output: Path, compiler: Compiler) -> None:
    """Link objects, in this order, to a shared library."""
    with tempfile.TemporaryDirectory(prefix="inferc-build-") as folder:
        linked = Path(folder) / output.name
        compiler.link_library(list(objects), linked)
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
    jobs = {
        source.file_name: partial(object_file, source, includes, target, compiler, cache)
        for source in sources
    }
    return in_parallel(jobs, progress)


def object_file(
    source: Source,
    includes: str,
    target: CpuTarget,
    compiler: Compiler,
    cache: Cache,
    extra_flags: tuple[str, ...] = (),
) -> Path:
    """The object of a source; `includes` is the digest of every header it may reach."""
    flags = (*COMMON_FLAGS, *compiler.target_flags(target), *extra_flags)
    key = ObjectKey(source.code, includes, target.name, flags, compiler.version)
    return cache.store(digest(key), ".o", _Make(source, target, compiler, extra_flags))


def in_parallel(jobs: Mapping[str, Callable[[], Made]], progress: Progress) -> dict[str, Made]:
    """Run jobs on all cores; results by name, in the order given. The first failure ends it."""
    done: dict[str, Made] = {}
    with ThreadPoolExecutor(max_workers=max(1, os.cpu_count() or 1)) as pool:
        running = {name: pool.submit(job) for name, job in jobs.items()}
        try:
            for name, job in running.items():
                done[name] = job.result()
                progress(name, len(done), len(jobs))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return done


@dataclass(frozen=True)
class _Make:
    """Compiles one source into a given path."""

    source: Source
    target: CpuTarget
    compiler: Compiler
    extra_flags: tuple[str, ...]

    def __call__(self, output: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="inferc-build-") as folder:
            path = Path(folder) / self.source.file_name
            path.write_text(self.source.code, encoding="utf-8")
            self.compiler.compile_object(
                path, output, self.target, INCLUDE, self.source.file_name, self.extra_flags
            )
