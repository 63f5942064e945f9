"""The vector type of 64-bit Arm, under an emulator, gives the bits that AVX2 gives."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from kernel_library import ARM, FLAGS, HERE, ISAS, Guarded, cached, opened, pointer

OPTIONS = {name: options for name, (_, options) in ISAS.items()} | ARM
OPTIONS["neon_dotprod"] = (
    "-O1 -march=armv8.2-a+dotprod"  # between the two: the byte dots alone differ
)
CASES, RESULTS = 200, 46


def build(isa: str) -> Path:
    options = [*FLAGS, *OPTIONS[isa].split(), "-shared"]
    return cached(f"{isa}-simd.so", options, HERE / "library_simd.cpp", isa=isa)


@cache
def results(isa: str) -> np.ndarray:
    """`[cases - 1, results, 16]` words."""
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 256, (CASES, 64), np.uint8)
    x = rng.standard_normal((CASES, 16)).astype(np.float32)
    out = Guarded(((CASES - 1), RESULTS, 64), np.uint8, 0)
    written = opened(isa, build).simd_all(pointer(bits), pointer(x), CASES, pointer(out.array))
    out.check()
    assert written == out.nbytes
    return out.array.view(np.uint32)


@pytest.mark.parametrize("isa", ["neon", "neon_dotprod", "neon_dots"])
def test_bits_of_arm(isa: str) -> None:
    found, wanted = results(isa), results("avx2")
    assert [i for i in range(RESULTS) if not np.array_equal(found[:, i], wanted[:, i])] == []


def test_bits_of_portable_code() -> None:
    """Multiply-adds are two roundings there, and so is what is made of them."""
    found, wanted = results("portable"), results("avx2")
    unequal = {i for i in range(RESULTS) if not np.array_equal(found[:, i], wanted[:, i])}
    fma, elementary = 20 + 5, set(range(20 + 16, 20 + 20))
    assert fma in unequal and unequal <= {fma, *elementary}
