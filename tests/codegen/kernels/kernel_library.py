"""Builds the kernel headers into small libraries for the tests: one an ISA, once a content."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from remote_library import RemoteLibrary, Tools, find_tools, pointer

HERE = Path(__file__).parent
INCLUDE = HERE.parents[2] / "codegen" / "include" / "inferc"
FLAGS = "-std=c++17 -fPIC -fno-exceptions -fno-rtti -ffp-contract=off -Wall -Wextra -Werror".split()
# GCC 12 warns about its own intrinsics headers.
FLAGS += ["-Wno-uninitialized", "-Wno-maybe-uninitialized", "-Wno-psabi"]

# Less optimisation than in use: compile time counts here, and no result may depend on it.
ISAS = {
    "avx512": (
        "avx512_bf16 avx512_vnni avx512bw avx512dq avx512vl",
        "-O1 -march=x86-64-v4 -mavx512vnni -mavx512bf16",
    ),
    "avx2": ("avx2 fma f16c", "-O1 -march=x86-64-v3"),
    "portable": ("", "-O1"),
}
# Of another machine, under an emulator: asked for by `make arm`, as it takes minutes.
ARM = {
    "neon": "-O1 -march=armv8-a",
    "neon_dots": "-O1 -march=armv8.2-a+dotprod+i8mm+bf16",
}
if "INFERC_ARM" in os.environ:
    ISAS |= {name: ("", options) for name, options in ARM.items()}
SPARING = {"portable", *ARM}  # builds without all formats
# The portable build differs in its vectors, not in the formats: some of them will do.
UNITS = {isa: ("dense", "legacy", "k", "four", "eight", "codes", "other") for isa in ISAS} | {
    isa: ("dense", "some", "other") for isa in SPARING
}
PORTABLE_FORMATS = tuple(
    "f32 bf16 f16 f8e4m3 i8 q4_1 q5_0 q8_0 q3_k q6_k u4b_g64 u8_g128 f8_g128 nf4_g64 mxfp4".split()
)


def arm_tools() -> Tools:
    tools = find_tools()
    if isinstance(tools, str):
        pytest.skip(tools)
    return tools


def compiler(isa: str = "") -> str:
    if isa.startswith("neon"):
        return arm_tools().compiler
    found = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if found is None:
        pytest.skip("no C++ compiler on PATH")
    return found


def cache_folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"inferc-kernel-tests-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    return folder


def formats_of(isa: str, formats: Iterable[str]) -> list[str]:
    """Those of ``formats`` that the build has."""
    return [f for f in formats if isa not in SPARING or f in PORTABLE_FORMATS]


def preprocessed(command: str, options: list[str], source: Path) -> str:
    """The text a compilation depends on; comments and headers it does not use leave it as it is."""
    words = [command, *options, f"-I{INCLUDE}", "-E", "-P", str(source)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-6000:]
    return done.stdout


def cached(
    name: str, options: list[str], source: Path, extra: tuple[str, ...] = (), isa: str = ""
) -> Path:  # fmt: skip
    """Compiles ``source`` once for each content, in a folder that outlives the run."""
    command = compiler(isa)
    key = "\0".join([command, *options, *extra, preprocessed(command, options, source)])
    target = cache_folder() / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:20]}"
    if not target.exists():
        partial = target.with_suffix(f".{os.getpid()}")
        run([command, *options, f"-I{INCLUDE}", str(source), *extra, "-o", str(partial)])
        os.replace(partial, target)
    return target


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr[-6000:]}"


def cpu_flags() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return set()
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return set(line.split())


def build(isa: str) -> Path:
    def compile_unit(unit: str) -> Path:
        source = HERE / ("library_other.cpp" if unit == "other" else "library_matmul.cpp")
        options = [*FLAGS, *ISAS[isa][1].split(), f"-DPART_{unit}"]
        return cached(f"{isa}-{unit}.o", options, source, ("-c",), isa)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_unit, UNITS[isa]))
    key = "-".join(path.name.rpartition("-")[2] for path in objects)
    target = cache_folder() / f"{isa}-{hashlib.sha256(key.encode()).hexdigest()[:20]}.so"
    if not target.exists():
        partial = target.with_suffix(f".{os.getpid()}")
        run([compiler(isa), "-shared", "-pthread", *map(str, objects), "-o", str(partial)])
        os.replace(partial, target)
    return target


@cache
def library(isa: str) -> ctypes.CDLL:
    return opened(isa, build)


def opened(isa: str, build: Callable[[str], Path]) -> ctypes.CDLL:
    """What `build` makes, ready to be called; skips where it cannot run."""
    if isa.startswith("neon"):
        tools = arm_tools()
        caller = cached("caller-arm", ["-O1"], HERE / "remote_caller.cpp", isa=isa)
        return RemoteLibrary(build(isa), caller, tools)  # type: ignore[return-value]
    missing = set(ISAS[isa][0].split()) - cpu_flags()
    if missing:
        pytest.skip(f"this CPU has no {', '.join(sorted(missing))}")
    return ctypes.CDLL(str(build(isa)))


def call(function, *args) -> None:
    """Calls with arrays as pointers, ints as int64, floats as float; int32 come wrapped."""
    converted = []
    for arg in args:
        if isinstance(arg, np.ndarray):
            converted.append(pointer(arg))
        elif isinstance(arg, float):
            converted.append(ctypes.c_float(arg))
        elif isinstance(arg, int):
            converted.append(ctypes.c_int64(arg))
        else:
            converted.append(arg)
    function(*converted)


GUARD = 64


class Guarded:
    """A zero-filled or poisoned array between guard bytes, 64-byte aligned."""

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype=np.float32,
        fill: float | None = float("nan"),
        shift: int = 0,
    ):
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        self.raw = np.full(nbytes + 2 * GUARD + 128, 0xA5, np.uint8)
        self.start = -self.raw.ctypes.data % 64 + GUARD + shift
        self.nbytes = nbytes
        self.array = self.raw[self.start : self.start + nbytes].view(dtype).reshape(shape)
        if fill is not None:
            self.array[...] = fill

    def check(self) -> None:
        before, after = self.raw[: self.start], self.raw[self.start + self.nbytes :]
        assert (before == 0xA5).all(), "wrote in front of the buffer"
        assert (after == 0xA5).all(), "wrote behind the buffer"
