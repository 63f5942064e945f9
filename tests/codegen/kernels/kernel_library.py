"""Builds the kernel headers into small libraries for the tests, once per content, one for each ISA."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
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
    "avx512": ("avx512_bf16 avx512_vnni avx512bw", "-O2 -march=x86-64-v4 -mavx512vnni -mavx512bf16"),
    "avx2": ("avx2 fma f16c", "-O1 -march=x86-64-v3"),
    "portable": ("", "-O1"),
}
UNITS = (("library_matmul.cpp", 0), ("library_matmul.cpp", 1), ("library_matmul.cpp", 2), ("library_other.cpp", 0))
SANITIZE = "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all"


def compiler() -> str:
    found = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if found is None:
        pytest.skip("no C++ compiler on PATH")
    return found


def cache_folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"inferc-kernel-tests-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    return folder


def content_key(*parts: str) -> str:
    digest = hashlib.sha256("\0".join(parts).encode())
    for path in sorted([*INCLUDE.glob("*.h"), *HERE.glob("*.cpp")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:20]


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
    options = ISAS[isa][1].split()
    target = cache_folder() / f"{isa}-{content_key(compiler(), isa, *options)}.so"
    if target.exists():
        return target
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        commands, objects = [], []
        for source, part in UNITS:
            out = f"{folder}/{source}.{part}.o"
            objects.append(out)
            commands.append(
                [compiler(), *FLAGS, *options, f"-DPART={part}", f"-I{INCLUDE}", "-c", str(HERE / source), "-o", out]
            )
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(run, commands))
        run([compiler(), "-shared", "-pthread", *objects, "-o", f"{folder}/lib.so"])
        os.replace(f"{folder}/lib.so", target)
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
    """Calls with arrays as pointers, ints as int64 and floats as float; int32 arguments come wrapped."""
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

    def __init__(self, shape: tuple[int, ...], dtype=np.float32, fill: float | None = float("nan"), shift: int = 0):
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
