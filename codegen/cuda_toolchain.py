"""The CUDA compiler: nvcc of a toolkit or of PyPI's packages, else NVRTC. Neither needs a GPU.

Both make a cubin for one architecture. Kernels include no header of CUDA's: NVRTC needs none.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from inferc.codegen.toolchain import compile_error, run_compiler, tell_version
from inferc.errors import ToolchainError

# As written: no fast-math; products and sums may be contracted, as they are by every CUDA compiler.
# No -lineinfo: it would put the folder of the build into the cubin.
CUBIN_FLAGS = ("-std=c++17", "--fmad=true")
# The first release of CUDA that knows an architecture (release notes of the toolkit).
FIRST_RELEASE = {
    "sm_80": (12, 0), "sm_86": (12, 0), "sm_89": (12, 0), "sm_90a": (12, 0),
    "sm_100a": (12, 8), "sm_120a": (12, 8),
}  # fmt: skip
_HOST_COMPILERS = ("gcc", "c++", "g++", "clang++")  # nvcc calls gcc if it is not told another
_TOOLKIT_VARIABLES = ("CUDA_HOME", "CUDA_PATH")
PIP_NVRTC = "pip install 'cuda-bindings>=13' 'nvidia-cuda-nvrtc>=13'"
PIP_NVCC = "pip install 'nvidia-cuda-nvcc>=13'"


class CudaCompiler(Protocol):
    """Compiles CUDA C++ to cubins. `version` is part of every cache key; `where` is for people."""

    @property
    def version(self) -> str:
        """Name and full version."""

    @property
    def where(self) -> str:
        """What is called: a path, or a package."""

    def compile_cubin(
        self, source: Path, output: Path, arch: str, include: Path, shown_as: str
    ) -> str:
        """Compile a file for an architecture such as `sm_90a`; returns ptxas's messages.

        Raises ToolchainError: the source does not compile, or the compiler does not know `arch`.
        """


@dataclass(frozen=True)
class Nvcc:
    """nvcc, with the host compiler that it preprocesses with (None: the gcc on the path)."""

    command: str
    version: str
    host: str | None = None

    @property
    def where(self) -> str:
        """Path of nvcc."""
        return self.command

    def compile_cubin(
        self, source: Path, output: Path, arch: str, include: Path, shown_as: str
    ) -> str:
        """Compile a file; see `CudaCompiler`."""
        _check_release(self.version, arch)
        host = () if self.host is None else ("-ccbin", self.host)
        command = [
            self.command, *CUBIN_FLAGS, *host, f"-arch={arch}", "-cubin", "-Xptxas=-v",
            "-I", str(include), source.name, "-o", str(output),
        ]  # fmt: skip
        return run_compiler(command, source.parent, f"compiling {shown_as} for {arch}", source)


@dataclass(frozen=True)
class Nvrtc:
    """NVRTC through cuda.bindings: a library, no toolkit and no host compiler."""

    version: str
    where: str

    def compile_cubin(
        self, source: Path, output: Path, arch: str, include: Path, shown_as: str
    ) -> str:
        """Compile a file; see `CudaCompiler`."""
        from cuda.bindings import nvrtc

        _check_release(self.version, arch)
        options = [
            *CUBIN_FLAGS, "--device-as-default-execution-space", f"--gpu-architecture={arch}",
            f"-I{include}", "--ptxas-options=-v",
        ]  # fmt: skip
        text = source.read_bytes()
        program = _ask(nvrtc.nvrtcCreateProgram(text, source.name.encode(), 0, [], []))
        try:
            status, *_ = nvrtc.nvrtcCompileProgram(
                program, len(options), [option.encode() for option in options]
            )
            log = bytearray(_ask(nvrtc.nvrtcGetProgramLogSize(program)))
            _ask(nvrtc.nvrtcGetProgramLog(program, log))
            messages = bytes(log).rstrip(b"\0").decode(errors="replace")
            if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
                raise compile_error(
                    f"NVRTC failed ({status.name})", f"compiling {shown_as} for {arch}", source,
                    f"Options: {' '.join(options)}\n", messages,
                )  # fmt: skip
            cubin = bytearray(_ask(nvrtc.nvrtcGetCUBINSize(program)))
            _ask(nvrtc.nvrtcGetCUBIN(program, cubin))
        finally:
            nvrtc.nvrtcDestroyProgram(program)
        output.write_bytes(cubin)
        return messages


def find_cuda_compiler(archs: Sequence[str] = ()) -> CudaCompiler:
    """`$CUDACXX`, else nvcc (path, `$CUDA_HOME`, `$CUDA_PATH`, PyPI's packages), else NVRTC.

    `$CUDACXX` is the path of an nvcc, or `nvrtc`. A compiler that is too old for one of `archs` is
    passed over. Raises ToolchainError: what was looked for, and what to install.
    """
    found = _chosen() or _found()
    for compiler in found:
        if all(_release(compiler.version) >= _first_release(arch) for arch in archs):
            return compiler
    for arch in archs:
        _check_release(found[0].version, arch)
    return found[0]


def _chosen() -> list[CudaCompiler]:
    """What `$CUDACXX` says."""
    chosen = os.environ.get("CUDACXX")
    if not chosen:
        return []
    if chosen == "nvrtc":
        library = _find_nvrtc()
        if library is None:
            raise ToolchainError(
                f"CUDACXX is set to 'nvrtc', but NVRTC cannot be loaded: `{PIP_NVRTC}`."
            )
        return [library]
    command = shutil.which(chosen)
    if command is None:
        raise ToolchainError(
            f"CUDACXX is set to '{chosen}', which is not on the path."
            " Give the path of nvcc, or 'nvrtc'."
        )
    return [_nvcc(command)]


def _found() -> list[CudaCompiler]:
    """The compilers of this machine, the preferred first; at least one."""
    command, library = find_tool("nvcc"), _find_nvrtc()
    if command is None and library is None:
        raise ToolchainError(
            "No CUDA compiler was found: no nvcc on the path, in $CUDA_HOME or $CUDA_PATH, or in"
            " PyPI's nvidia-cuda-nvcc; no NVRTC by PyPI's cuda-bindings and nvidia-cuda-nvrtc."
            f" `{PIP_NVRTC}` is enough (no toolkit, no GPU); so is `{PIP_NVCC}` where there is a"
            " gcc."
        )
    found: list[CudaCompiler] = [] if library is None else [library]
    if command is not None and (library is None or _host_compiler() is not None):
        found.insert(0, _nvcc(command))  # says so if it lacks a host compiler
    return found


def find_tool(name: str) -> str | None:
    """Path of a tool of the toolkit: on the path, in `$CUDA_HOME`, `$CUDA_PATH`, or from PyPI."""
    found = shutil.which(name)
    if found is not None:
        return found
    for variable in _TOOLKIT_VARIABLES:
        root = os.environ.get(variable)
        candidate = shutil.which(name, path=str(Path(root) / "bin")) if root else None
        if candidate is not None:
            return candidate
    return next((str(path) for path in _packaged(f"*/bin/{name}")), None)


def _packaged(pattern: str) -> list[Path]:
    """Files of PyPI's nvidia-* packages, the newest release first."""
    spec = importlib.util.find_spec("nvidia")
    roots = [] if spec is None else list(spec.submodule_search_locations or ())
    found = [path for root in roots for path in Path(root).glob(pattern) if path.is_file()]
    return sorted(found, key=lambda path: _numbers(path.parts[-3]), reverse=True)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(digits) for digits in re.findall(r"\d+", text))


def _host_compiler() -> str | None:
    return next((name for name in _HOST_COMPILERS if shutil.which(name)), None)


def _nvcc(command: str) -> Nvcc:
    host = _host_compiler()
    if host is None:
        raise ToolchainError(
            f"nvcc ({command}) needs a host compiler to preprocess with, and none of"
            f" {', '.join(_HOST_COMPILERS)} is on the path. Install one (Debian: `apt install"
            f" g++`), or use NVRTC, which needs none: `{PIP_NVRTC}`."
        )
    answer = tell_version([command, "--version"], f"CUDA compiler '{command}'")
    release = re.search(r"release [\d.]+, V([\d.]+)", answer)
    if release is None:
        raise ToolchainError(f"'{command} --version' names no release of CUDA: {answer[:300]}")
    return Nvcc(command, f"nvcc {release[1]}", None if host == "gcc" else host)


def _find_nvrtc() -> Nvrtc | None:
    """NVRTC, if its library and its Python binding are here."""
    try:
        from cuda.bindings import nvrtc
    except ImportError:
        return None
    try:
        status, major, minor = nvrtc.nvrtcVersion()
    except RuntimeError:  # cuda.pathfinder found no library
        return None
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        return None
    try:
        package = importlib.metadata.version("nvidia-cuda-nvrtc")
    except importlib.metadata.PackageNotFoundError:
        return Nvrtc(f"nvrtc {major}.{minor}", "libnvrtc of the system")
    return Nvrtc(f"nvrtc {major}.{minor} ({package})", "nvidia-cuda-nvrtc")


def release(version: str) -> str:
    """Release of CUDA in a compiler's version: `13.0` of `nvcc 13.0.88`."""
    return ".".join(map(str, _release(version)))


def _release(version: str) -> tuple[int, ...]:
    return _numbers(version.split()[1])[:2]


def _first_release(arch: str) -> tuple[int, ...]:
    if arch not in FIRST_RELEASE:
        raise ToolchainError(
            f"'{arch}' is no architecture that kernels are made for."
            f" Known: {', '.join(FIRST_RELEASE)}."
        )
    return FIRST_RELEASE[arch]


def _check_release(version: str, arch: str) -> None:
    """Refuse an architecture that this release cannot know, in words better than the compiler's."""
    first = _first_release(arch)
    if _release(version) < first:
        raise ToolchainError(
            f"{version} is too old for {arch}: CUDA {first[0]}.{first[1]} or newer is needed."
            f" `{PIP_NVRTC}` brings a new one."
        )


def _ask(answer: tuple[Any, ...]) -> Any:
    """The value of a call of NVRTC."""
    status, *values = answer
    if int(status) != 0:
        raise ToolchainError(f"NVRTC: {status.name}.")
    return values[0] if values else None
