"""Each primitive of the CUDA emulation beside numpy in every order; its device code compiles."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest

from inferc.codegen.cuda_toolchain import find_cuda_compiler
from inferc.codegen.render import INCLUDE
from inferc.errors import ToolchainError
from tests.codegen.cuda.emulated_kernels import ORDERS, EmulatedKernels, EmulationError

SOURCE = Path(__file__).parent / "emulation_primitives.cu"
LANES = np.arange(32)
RANDOM = np.random.default_rng(3)


@functools.cache
def kernels(sm: int = 90) -> EmulatedKernels:
    return EmulatedKernels(SOURCE, sm)


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape, dtype=np.float32)


def bf16_bits(x: np.ndarray) -> np.ndarray:
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def e4m3_values() -> np.ndarray:
    """The value of each code; NaN for 0x7f and 0xff."""
    code = np.arange(256)
    exponent, fraction = code >> 3 & 15, code & 7
    value = np.where(
        exponent == 0, fraction * 2.0**-9, (1 + fraction / 8) * 2.0 ** (exponent - 7.0)
    )
    value[exponent * 8 + fraction == 127] = np.nan
    return np.where(code < 128, value, -value)


@pytest.mark.parametrize("order", ORDERS)
def test_shuffles(order: int) -> None:
    x = floats(32)
    out = kernels().run("shuffles", [x], (8, 32), threads=32, order=order)
    part, place = LANES // 8 * 8, LANES % 8
    expected = [
        np.full(32, x[5]), x[part + LANES * 7 % 8], x[LANES ^ 3],
        x[np.where(LANES + 3 < 32, LANES + 3, LANES)], x[np.where(place + 3 < 8, LANES + 3, LANES)],
        x[np.where(LANES >= 3, LANES - 3, LANES)], x[np.where(place >= 3, LANES - 3, LANES)],
    ]  # fmt: skip
    pair = x + x[LANES ^ 1]
    expected.append(np.where(LANES < 16, pair, pair * 4))
    assert (out == np.array(expected)).all()


@pytest.mark.parametrize("order", ORDERS)
def test_votes(order: int) -> None:
    x = RANDOM.integers(-8, 9, 32).astype(np.int32)
    out = kernels().run("votes", [x], (4, 32), "u4", threads=32, order=order)
    ballot = int(((x > 0).astype(np.uint64) << LANES.astype(np.uint64)).sum())
    even = np.where(LANES % 2 == 0, ballot & 0x55555555, 0)
    assert (out == np.array([[ballot] * 32, [0] * 32, [1] * 32, even], np.uint32)).all()


@pytest.mark.parametrize("order", ORDERS)
def test_sums_and_maxima(order: int) -> None:
    x = floats(128)
    out = kernels().run("reductions", [x], (128, 4), threads=128, order=order)
    rows = x.reshape(4, 32)
    np.testing.assert_allclose(out[:, 0], rows.sum(1).repeat(32), atol=1e-5)
    assert (out[:, 1] == rows.max(1).repeat(32)).all()
    np.testing.assert_allclose(out[:, 2], x.sum(), atol=1e-5)
    assert (out[:, 3] == x.max()).all() and (out[:, 2] == out[0, 2]).all()


@pytest.mark.parametrize("order", ORDERS)
def test_atomics(order: int) -> None:
    out = kernels().run("atomics", [], (8,), "i4", threads=64, grid=(2, 1, 1), order=order, fill=0)
    half = int(np.float32(64).view(np.int32))
    assert out.tolist() == [8128, 127, -127, half, 7, 0x7FFFFFFF, 9, 384]


@pytest.mark.parametrize("order", ORDERS)
def test_shared_memory(order: int) -> None:
    x = floats(2, 64)
    out = kernels().run(
        "shared_memory", [x], (2, 64), threads=64, grid=(2, 1, 1), shared_bytes=256, order=order
    )
    assert (out == x[:, (62 - np.arange(64)) % 64]).all()


def test_conversions() -> None:
    codes = e4m3_values()
    numbers = np.sort(np.abs(codes[np.isfinite(codes)])).astype(np.float32)
    ties = (numbers[1:] + numbers[:-1]) / 2
    x = np.concatenate([
        floats(64), floats(64) * 100, numbers, ties, np.nextafter(ties, np.float32(9e9)),
        np.float32([0, 1e-8, 1e9, 65519, 65520, 6e-8, 2.9e-8, 449, 464, 1e38, 5e-41, np.inf]),
    ]).astype(np.float32)  # fmt: skip
    x = np.resize(x, (len(x) + 31) // 32 * 32)
    out = np.concatenate([
        kernels().run("conversions", [part], (4, 32), "u4", threads=32)
        for part in x.reshape(-1, 32)
    ], axis=1)  # fmt: skip
    bf16 = bf16_bits(x).astype(np.uint32)
    assert (out[0] == (bf16 | (bf16 ^ 0x8000) << 16)).all()
    with np.errstate(over="ignore"):
        f16 = x.astype(np.float16).view(np.uint16).astype(np.uint32)
    assert (out[1] == (f16 | (f16 ^ 0x8000) << 16)).all()
    finite = np.where(np.isnan(codes), np.inf, codes)
    limited = np.clip(x, -448, 448).astype(np.float64)
    distance = np.abs(limited[:, None] - finite[None])
    nearest = distance == distance.min(1, keepdims=True)
    best = np.where(nearest.sum(1, keepdims=True) > 1, nearest & (np.arange(256) % 2 == 0), nearest)
    assert best[np.arange(len(x)), out[2]].all()  # of two equally near ones that with an even code
    assert (out[3].view(np.float32) == codes[out[2]]).all()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_pipeline_of_copies(order: int, rows: int) -> None:
    x = floats(rows, 128)
    out = kernels().run(
        "pipeline", [x], (rows, 128), threads=32, shared_bytes=1536, n=rows, order=order
    )
    assert (out == np.where(np.arange(rows)[:, None] % 2 == 0, x[:, ::-1], 0)).all()


@pytest.mark.parametrize("order", ORDERS)
def test_matrix_loads(order: int) -> None:
    x = RANDOM.integers(0, 1 << 16, (4, 8, 8), dtype=np.uint16)
    out = kernels().run(
        "load_matrices", [x], (12, 32), "u4", threads=32, shared_bytes=512, order=order
    )
    plain = x.reshape(4, 32, 2)
    turned = x.transpose(0, 2, 1).reshape(4, 32, 2)
    expected = np.concatenate([plain, turned, plain[:2], turned[:2]]).astype(np.uint32)
    assert (out == (expected[..., 0] | expected[..., 1] << 16)).all()


@pytest.mark.parametrize("order", ORDERS)
def test_matrix_products(order: int) -> None:
    a, b = floats(2, 16, 16), floats(2, 8, 16)
    halves = [np.stack([bf16_bits(m[0]), m[1].astype(np.float16).view(np.uint16)]) for m in (a, b)]
    out = kernels().run("products", halves, (2, 16, 8), threads=32, order=order)
    start = np.add.outer(np.arange(16) // 8 * 2, np.arange(8) % 2)
    for form, widen in ((0, from_bf16), (1, lambda bits: bits.view(np.float16))):
        left, right = (widen(m[form]).astype(np.float64) for m in halves)
        np.testing.assert_allclose(out[form], start + left @ right.T, atol=1e-5)


@pytest.mark.parametrize("order", ORDERS)
def test_named_barriers_and_streaming_loads(order: int) -> None:
    x = RANDOM.integers(0, 1 << 32, (128, 4), dtype=np.uint32)
    out = kernels().run(
        "named_barriers", [x], (128, 4), "u4", threads=128, shared_bytes=2048, order=order
    )
    assert (out == x[np.arange(128) ^ 32]).all()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("rows", [1, 6])
def test_bulk_copies_and_mbarriers(order: int, rows: int) -> None:
    x = floats(rows, 128)
    out = kernels().run(
        "bulk_pipeline", [x], (rows, 128), threads=64, shared_bytes=1024, n=rows, order=order
    )
    assert (out == x + 1).all()


@pytest.mark.parametrize("order", ORDERS)
def test_arrivals_and_register_budgets(order: int) -> None:
    x = floats(128)
    out = kernels().run("handover", [x], (128,), threads=256, shared_bytes=512, order=order)
    assert (out == x[::-1]).all()


@pytest.mark.parametrize("columns", [8, 40, 64, 256])
def test_wgmma(columns: int) -> None:
    a, b = bf16_bits(floats(64, 64)), bf16_bits(floats(columns, 64))
    expected = from_bf16(a).astype(np.float64) @ from_bf16(b).astype(np.float64).T
    for order in ORDERS if columns < 64 else ORDERS[::3]:
        out = kernels().run(
            f"wgmma_{columns}", [a, b], (64, columns), threads=128, shared_bytes=columns * 128,
            order=order,
        )  # fmt: skip
        np.testing.assert_allclose(out, expected, atol=1e-4)


@pytest.mark.parametrize("columns", [24, 48, 64, 128])
def test_wgmma_with_columns_contiguous(columns: int) -> None:
    """Each width has another swizzle: none, 32, 64 and 128 bytes."""
    a, b = bf16_bits(floats(64, 64)), bf16_bits(floats(64, columns))
    out = kernels().run(
        f"turned_{columns}", [a, b], (64, columns), threads=128, shared_bytes=columns * 128
    )
    expected = from_bf16(a).astype(np.float64) @ from_bf16(b).astype(np.float64)
    np.testing.assert_allclose(out, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"threads": 48}, "whole warps"),
        ({"threads": 2048}, "1 to 1024 threads"),
        ({"grid": (0, 1, 1)}, "the grid is empty"),
        ({"grid": (1, 70000, 1)}, "above 65535"),
        ({"shared_bytes": 228 << 10}, "too much shared memory"),
    ],
)
def test_what_a_device_would_not_launch(change: dict, said: str) -> None:
    with pytest.raises(EmulationError, match=f"kernel votes: .*{said}"):
        kernels().run("votes", [], (1,), **{"threads": 32, **change})


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_primitives_compile_for_the_device(arch: str, tmp_path: Path) -> None:
    try:
        compiler = find_cuda_compiler()
    except ToolchainError as error:
        pytest.skip(str(error))
    compiler.compile_cubin(SOURCE, tmp_path / "out.cubin", arch, INCLUDE, SOURCE.name)
