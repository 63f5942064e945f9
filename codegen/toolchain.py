"""The C++ compiler: finding one, compiling, linking. Its failures become one readable error."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from inferc.codegen.targets import CpuTarget, Target
from inferc.errors import ToolchainError
from inferc.runtime.host import host_machine

_CANDIDATES = ("c++", "g++", "clang++")
_ERROR_LINES = 12
# Kernels keep the order of roundings as written: no contraction, no -ffast-math.
COMMON_FLAGS = (
    "-O3", "-std=c++17", "-fno-exceptions", "-fno-rtti", "-ffp-contract=off", "-fno-math-errno",
    "-fPIC", "-fvisibility=hidden", "-Wall", "-Wno-psabi", "-Wno-unknown-pragmas",
)  # fmt: skip
SYSTEM_HEADER = "inferc/system.h"  # read in front of every source
# Names of kernels stay, for profilers.
LINK_FLAGS = ("-shared", "-Wl,--build-id=none", "-Wl,-z,noexecstack", "-Wl,--strip-debug")


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler. `command` starts every call; `version` is the first line of `--version`."""

    command: tuple[str, ...]
    version: str
    is_zig: bool = False
    is_gcc: bool = False

    @property
    def identity(self) -> str:
        """Version and the options of every call: what decides its output beside a call's own."""
        return shlex.join([self.version, *self.command[1:]])

    def flags(self, target: CpuTarget) -> tuple[str, ...]:
        """The options that decide what a kernel becomes."""
        return (*COMMON_FLAGS, *self.target_flags(target))

    def target_flags(self, target: CpuTarget) -> tuple[str, ...]:
        """Flags that select the instruction sets of `target`."""
        if not self.is_zig:
            return target.flags
        cpu = target.llvm_cpu.replace("-", "_") if target.isa else "baseline"
        features = [feature.replace(".", "_") for feature in target.llvm_features]
        return ("-mcpu=" + "+".join([cpu, *features]),)

    def compile_object(
        self,
        source: Path,
        output: Path,
        target: CpuTarget,
        include: Path,
        shown_as: str,
        extra_flags: tuple[str, ...] = (),
        precompiled: Path | None = None,
    ) -> None:
        """Compile one file. `shown_as` stands for the source in errors and in the object.

        `precompiled` is what `compile_header` made of SYSTEM_HEADER with the same flags, or None;
        the object is the same. Where the compiler rejects it, the header itself is read.
        """
        language = () if self.is_zig else ("-x", "c++")  # zig's command has it; a .cu needs it

        def command(header: str) -> list[str]:
            return [
                *self.command, *self.flags(target), *extra_flags, "-I", str(include),
                "-include", header,
                f"-ffile-prefix-map={source.parent}=.", f"-ffile-prefix-map={include}=include",
                *language, "-c", source.name, "-o", str(output),
            ]  # fmt: skip

        if precompiled is not None:  # it is found by the name without its suffix
            quick = command(str(precompiled.with_suffix("")))
            if subprocess.run(quick, cwd=source.parent, capture_output=True).returncode == 0:
                return
        run_compiler(command(SYSTEM_HEADER), source.parent, f"compiling {shown_as}", source)

    def compile_header(self, header: Path, output: Path, target: CpuTarget) -> None:
        """Precompile a header that includes headers of the system only (gcc)."""
        command = [*self.command, *self.flags(target), "-x", "c++-header"]
        command += ["-c", str(header), "-o", str(output)]
        run_compiler(command, output.parent, f"precompiling {header.name}", None)

    def preprocess(self, header: Path, target: CpuTarget) -> str:
        """All that a header declares and defines, macros too, when it is compiled (gcc, clang)."""
        command = [*self.command, *self.flags(target), "-x", "c++-header", "-E", "-P", "-dD"]
        return read_output([*command, str(header)], f"preprocessing {header.name}")

    def link_library(self, objects: list[Path], output: Path) -> None:
        """Link a shared library that needs the C library and nothing else."""
        command = [*self.command, *LINK_FLAGS, *map(str, objects), "-o", str(output)]
        command += ["-pthread", "-lm"]
        if self.is_zig:  # `-x c++` would make it read objects as sources
            at = command.index("-x")
            del command[at : at + 2]
        run_compiler(command, output.parent, f"linking {output.name}", None)


def tell_version(question: list[str], name: str) -> str:
    """What a compiler answers when asked for its version: part of every cache key."""
    try:
        answer = subprocess.run(question, capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainError(f"The {name} failed: {error}.") from error
    if answer.returncode != 0 or not answer.stdout.strip():
        raise ToolchainError(f"The {name} did not tell its version: {answer.stderr.strip()[:300]}")
    return answer.stdout.strip()


def find_compilers(targets: Iterable[Target]) -> dict[str, Compiler]:
    """A compiler for each machine of the targets, by the machine's name."""
    machines = dict.fromkeys(target.machine for target in targets)
    here = host_machine()
    return {m: find_compiler() if m == here else find_cross_compiler(m) for m in machines}


def find_cross_compiler(machine: str) -> Compiler:
    """A compiler for Linux on another machine: that of its binutils triplet, else `ziglang`."""
    triplet = f"{machine}-linux-gnu"
    name = f"{triplet}-g++"
    if shutil.which(name):
        return _probed((name,))
    if importlib.util.find_spec("ziglang") is not None:
        return _zig("-target", triplet)
    raise ToolchainError(
        f"No C++ compiler for {machine} was found: neither {name} on the path nor the package"
        f" ziglang. Install one (Debian: `apt install g++-{machine.replace('_', '-')}-linux-gnu`),"
        " or `pip install ziglang`."
    )


def find_compiler() -> Compiler:
    """`$CXX`, else c++, g++ or clang++ on the path, else the `ziglang` package."""
    chosen = os.environ.get("CXX")
    if chosen:
        words = shlex.split(chosen)
        if shutil.which(words[0]) is None:
            raise ToolchainError(f"CXX is set to '{chosen}', but '{words[0]}' is not on the path.")
        return _probed(tuple(words))
    for name in _CANDIDATES:
        if shutil.which(name):
            return _probed((name,))
    if importlib.util.find_spec("ziglang") is not None:
        return _zig()
    raise ToolchainError(
        "No C++ compiler was found: neither $CXX nor c++, g++ or clang++ on the path."
        " Install one (Debian: `apt install g++`), or `pip install ziglang`."
    )


def _zig(*options: str) -> Compiler:
    command = (sys.executable, "-m", "ziglang", "cc", *options, "-x", "c++", "-nostdlib++")
    return _probed(command, is_zig=True)


def _probed(command: tuple[str, ...], *, is_zig: bool = False) -> Compiler:
    question = [sys.executable, "-m", "ziglang", "version"] if is_zig else [*command, "--version"]
    answer = tell_version(question, f"C++ compiler '{shlex.join(command)}'")
    version = answer.splitlines()[0]
    is_gcc = not is_zig and "Free Software Foundation" in answer  # in its words on copying
    return Compiler(command, f"zig {version}" if is_zig else version, is_zig, is_gcc)


def read_output(command: list[str], doing: str) -> str:
    """What a compiler writes to its standard output."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ToolchainError(f"The compiler failed when {doing}: {done.stderr.strip()[:300]}")
    return done.stdout


def run_compiler(command: list[str], folder: Path, doing: str, source: Path | None) -> str:
    """Run a command in a folder; returns its messages. A source that fails is kept and named."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ToolchainError(f"{command[0]}: cannot be run ({error.strerror}).") from error
    if done.returncode == 0:
        return done.stderr
    if "No space left on device" in done.stderr:
        raise ToolchainError(
            f"The disk is full: the compiler could not write its files when {doing}. Free space,"
            " or set INFERC_CACHE and TMPDIR to folders that have some."
        )
    raise compile_error(
        f"The compiler failed (exit code {done.returncode})", doing, source,
        f"Command: {shlex.join(command)}\n", done.stderr or done.stdout,
    )  # fmt: skip


def compile_error(
    what: str, doing: str, source: Path | None, details: str, messages: str
) -> ToolchainError:
    """The error of a compiler, with its first messages; `source` is copied to be looked at."""
    kept = "" if source is None else f" The source is kept at {_keep(source)}."
    lines = messages.strip().splitlines()[:_ERROR_LINES]
    return ToolchainError(f"{what} when {doing}.{kept}\n{details}" + "\n".join(lines))


def _keep(source: Path) -> Path:
    """Copy a source that failed to where it outlives the build folder."""
    import tempfile

    kept = Path(tempfile.mkdtemp(prefix="inferc-failed-")) / source.name
    shutil.copy(source, kept)
    return kept
