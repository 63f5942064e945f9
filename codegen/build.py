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
from inferc.codegen.headers import reached_headers
from inferc.codegen.render import INCLUDE
from inferc.codegen.row_objects import row_objects
from inferc.codegen.system_headers import find_system_header, make_system_header
from inferc.codegen.targets import CpuTarget
from inferc.codegen.toolchain import SYSTEM_HEADER, Compiler

Progress = Callable[[str, int, int], None]  # what, done, of how many
Made = TypeVar("Made")
# Precompiling the system's headers takes as long as three kernels save by it.
_KERNELS_WORTH_A_HEADER = 4


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
    keys = {s.file_name: _object_key(s, target, compiler) for s in sources}
    missing = [s for s in sources if cache.find(keys[s.file_name], ".o") is None]
    jobs: dict[str, Callable[[], Path | None]] = {}
    if len(missing) >= _KERNELS_WORTH_A_HEADER:  # those that begin before it is there do without
        jobs[SYSTEM_HEADER] = partial(make_system_header, compiler, target, cache)
    for source in sorted(sources, key=lambda s: -len(s.code)):  # the step, which takes long, first
        job = partial(object_file, source, target, compiler, cache)
        jobs[source.file_name] = job
    done = in_parallel(jobs, progress)
    return {name: path for name, path in done.items() if path is not None}


def object_file(
    source: Source,
    target: CpuTarget,
    compiler: Compiler,
    cache: Cache,
    extra_flags: tuple[str, ...] = (),
) -> Path:
    """The object of a source: compiled, or found in the cache."""
    key = _object_key(source, target, compiler, extra_flags)
    return cache.store(key, ".o", _Make(source, target, compiler, cache, extra_flags))


def _object_key(
    source: Source,
    target: CpuTarget,
    compiler: Compiler,
    extra_flags: tuple[str, ...] = (),
) -> str:
    """A header that a source does not reach may change: its object stays."""
    headers = digest_files(reached_headers(f'#include "{SYSTEM_HEADER}"\n{source.code}'))
    flags = (*compiler.flags(target), *extra_flags)
    return digest(ObjectKey(source.code, headers, target.name, flags, compiler.identity))


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
    cache: Cache
    extra_flags: tuple[str, ...]

    def __call__(self, output: Path) -> None:
        plain = not self.extra_flags  # the precompiled header is made without
        header = find_system_header(self.compiler, self.target, self.cache) if plain else None
        with tempfile.TemporaryDirectory(prefix="inferc-build-") as folder:
            path = Path(folder) / self.source.file_name
            path.write_text(self.source.code, encoding="utf-8")
            self.compiler.compile_object(
                path, output, self.target, INCLUDE, self.source.file_name, self.extra_flags, header
            )
