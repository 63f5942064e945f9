"""CUDA sources to what an artifact holds: a cubin a kernel file and architecture, and step.so.

The same `.cu` files are compiled twice: by the CUDA compiler for their kernels, and as plain C++
for the functions that launch them. The library needs no CUDA to be built or loaded.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from inferc.codegen.build import Progress, Source, in_parallel, link, object_file
from inferc.codegen.cache import Cache, digest, digest_files
from inferc.codegen.cuda_toolchain import CUBIN_FLAGS, CudaCompiler
from inferc.codegen.headers import reached_headers
from inferc.codegen.render import INCLUDE
from inferc.codegen.targets.cpu import parse_cpu_target
from inferc.codegen.toolchain import Compiler

LIBRARY_FILE = "step.so"
CUBIN_SUFFIX = ".cubin"
_MESSAGES_SUFFIX = ".ptxas.txt"
# Launching is not worth optimising much, and is compiled for any machine of this kind.
HOST_FLAGS = ("-O1", "-DINFERC_HOST=1")
_HOST_TARGET = "cpu:portable"


@dataclass(frozen=True)
class CubinKey:
    """Everything that is baked into a cubin."""

    code: str
    includes: str
    arch: str
    flags: tuple[str, ...]
    compiler: str


@dataclass(frozen=True)
class Cubin:
    """A compiled kernel file for one architecture, and what ptxas said of it."""

    path: Path
    messages: str


def build_cuda_library(
    sources: Sequence[Source],
    folder: Path,
    *,
    archs: Sequence[str],
    compiler: Compiler,
    cuda_compiler: CudaCompiler,
    cache: Cache,
    progress: Progress,
) -> None:
    """Write `step.so` and `<arch>/<unit>.cubin` for every `.cu` file into `folder`.

    Args:
        sources: kernel files (`.cu`), and C++ that only the library has (`.cpp`).
        folder: where the files go; it exists.
        archs: such as `sm_90a`.
        compiler: of the library.
        cuda_compiler: of the cubins.
        cache: of objects and cubins.
        progress: told of each file that is ready.

    Raises:
        ToolchainError: a source does not compile; it is kept and named.
    """
    objects = {s.file_name: partial(_host_object, s, compiler, cache) for s in sources}
    cubins = {
        f"{arch}/{Path(s.file_name).with_suffix(CUBIN_SUFFIX)}": partial(
            _cubin_path, s, arch, cuda_compiler, cache
        )
        for arch in archs
        for s in _kernel_files(sources)
    }
    done = in_parallel({**cubins, **objects}, progress)
    progress("linking", len(done), len(done))
    link([done[s.file_name] for s in sources], folder / LIBRARY_FILE, compiler)
    for arch in archs:
        (folder / arch).mkdir(exist_ok=True)
    for name in cubins:
        shutil.copyfile(done[name], folder / name)


def compile_cubins(
    sources: Sequence[Source],
    archs: Sequence[str],
    cuda_compiler: CudaCompiler,
    cache: Cache,
    progress: Progress,
) -> Mapping[str, Cubin]:
    """Cubins of all kernel files by `<arch>/<unit>`, with ptxas's messages."""
    jobs = {
        f"{arch}/{Path(s.file_name).stem}": partial(cubin, s, arch, cuda_compiler, cache)
        for arch in archs
        for s in _kernel_files(sources)
    }
    return in_parallel(jobs, progress)


def cubin(source: Source, arch: str, cuda_compiler: CudaCompiler, cache: Cache) -> Cubin:
    """The cubin of a kernel file: compiled, or found in the cache."""
    includes = digest_files(reached_headers(source.code))
    key = digest(CubinKey(source.code, includes, arch, CUBIN_FLAGS, cuda_compiler.version))
    path = cache.store(key, CUBIN_SUFFIX, _MakeCubin(source, arch, cuda_compiler, cache, key))
    messages = cache.find(key, _MESSAGES_SUFFIX)
    return Cubin(path, messages.read_text(encoding="utf-8") if messages else "")


@dataclass(frozen=True)
class _MakeCubin:
    """Compiles one kernel file into a given path; its messages enter the cache first."""

    source: Source
    arch: str
    compiler: CudaCompiler
    cache: Cache
    key: str

    def __call__(self, output: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="inferc-build-") as folder:
            path = Path(folder) / self.source.file_name
            path.write_text(self.source.code, encoding="utf-8")
            messages = self.compiler.compile_cubin(
                path, output, self.arch, INCLUDE, self.source.file_name
            )

        def write(to: Path) -> None:
            to.write_text(messages, encoding="utf-8")

        self.cache.store(self.key, _MESSAGES_SUFFIX, write)


def _kernel_files(sources: Sequence[Source]) -> list[Source]:
    return [s for s in sources if s.file_name.endswith(".cu")]


def _cubin_path(source: Source, arch: str, cuda_compiler: CudaCompiler, cache: Cache) -> Path:
    return cubin(source, arch, cuda_compiler, cache).path


def _host_object(source: Source, compiler: Compiler, cache: Cache) -> Path:
    target = parse_cpu_target(_HOST_TARGET)
    return object_file(source, target, compiler, cache, HOST_FLAGS)
