"""Builds the kernel headers into small libraries for the tests: one an ISA, once a content."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

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
# The portable build differs in its vectors, not in the formats: some of them will do.
UNITS = {isa: ("dense", "legacy", "k", "four", "eight", "codes", "other") for isa in ISAS} | {
    "portable": ("dense", "some", "other")
}
PORTABLE_FORMATS = tuple(
    "f32 bf16 f16 f8e4m3 i8 q4_1 q5_0 q8_0 q3_k q6_k u4b_g64 u8_g128 f8_g128 nf4_g64 mxfp4".split()
)


def compiler() -> str:
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
    return [f for f in formats if isa != "portable" or f in PORTABLE_FORMATS]


def preprocessed(options: list[str], source: Path) -> str:
    """The text a compilation depends on; comments and headers it does not use leave it as it is."""
    command = [compiler(), *options, f"-I{INCLUDE}", "-E", "-P", str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-6000:]
    return done.stdout


def cached(name: str, options: list[str], source: Path, extra: tuple[str, ...] = ()) -> Path:
    """Compiles ``source`` once for each content, in a folder that outlives the run."""
    key = "\0".join([compiler(), *options, *extra, preprocessed(options, source)])
    target = cache_folder() / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:20]}"
    if not target.exists():
        partial = target.with_suffix(f".{os.getpid()}")
        run([compiler(), *options, f"-I{INCLUDE}", str(source), *extra, "-o", str(partial)])
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
        return cached(f"{isa}-{unit}.o", options, source, ("-c",))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_unit, UNITS[isa]))
    key = "-".join(path.name.rpartition("-")[2] for path in objects)
    target = cache_folder() / f"{isa}-{hashlib.sha256(key.encode()).hexdigest()[:20]}.so"
    if not target.exists():
        partial = target.with_suffix(f".{os.getpid()}")
        run([compiler(), "-shared", "-pthread", *map(str, objects), "-o", str(partial)])
        os.replace(partial, target)
    return target


@cache
def library(isa: str) -> ctypes.CDLL:
    missing = set(ISAS[isa][0].split()) - cpu_flags()
    if missing:
        pytest.skip(f"this CPU has no {', '.join(sorted(missing))}")
    return ctypes.CDLL(str(build(isa)))


def pointer(array: NDArray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


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
