"""Matmul in every weight format: against float64, bit-equal for any batch and split."""

import ctypes

import numpy as np
import pytest
from kernel_library import ISAS, Guarded, call, formats_of, library, pointer
from weights_cases import decode, from_bf16, random_rows, to_bf16

from inferc.codegen import packing, workspace

SHORTS = ("i8", "q4_1", "q5_0", "q8_0", "q3_k", "q4_k", "q6_k", "u4b_g64", "u8_g128", "mxfp4")
MOST = {"int8": 127, "int16": 127 * 256 + 127}
CASES = [
    (isa, fmt, math)
    for isa in ISAS
    for math, formats in (
        ("f32", packing.FORMATS),
        ("int8", packing.INTEGERS),
        ("int16", SHORTS),
        ("bf16", ("bf16",)),
    )
    for fmt in formats_of(isa, formats)
]
GATED = (
    "bf16 bf16", "q4_1 f32", "q6_k int8", "f16 f32", "u4b_g64 f32", "mxfp4 int8", "f8_g128 f32",
    "i8 int8", "q4_1 int16", "q8_0 int16",
)  # fmt: skip
ROWS = (1, 2, 3, 5, 8, 16, 37)


def run(isa, fmt, math, x, packed, n, *, workers=1, gated=False, pad=3):
    """y[rows, n], columns beyond n untouched; x has a row stride larger than k."""
    rows, k = x.shape
    lib = library(isa)
    wide = np.full((rows, k + pad), np.nan, np.float32)
    wide[:, :k] = x
    y = Guarded((rows, n + pad))
    scratch = Guarded((workspace.matmul_scratch_bytes(rows, k) * workers,), np.uint8, 0xFF)
    for worker in range(workers):
        call(
            lib[f"matmul_{fmt}_{math}"], wide, k + pad, packed, rows, n, k, y.array, n + pad,
            ctypes.c_int(gated), scratch.array, ctypes.c_int(worker), ctypes.c_int(workers),
        )  # fmt: skip
    y.check()
    scratch.check()
    assert np.isnan(y.array[:, n:]).all()
    return y.array[:, :n].copy()


def reference(fmt, math, x, w):
    """float64 product and the scale of its rounding errors."""
    x = x.astype(np.float64)
    if math == "bf16":
        x = from_bf16(to_bf16(x.astype(np.float32))).astype(np.float64)
    if math in MOST:
        rows, k = x.shape
        runs = np.pad(x.astype(np.float32), ((0, 0), (0, -k % 32))).reshape(rows, -1, 32)
        scale = np.abs(runs).max(-1, keepdims=True) / np.float32(MOST[math])
        rounded = np.rint(runs / np.where(scale == 0, 1, scale)) * scale
        x = rounded.reshape(rows, -1)[:, :k].astype(np.float64)
    w = w.astype(np.float64)
    return x @ w.T, np.abs(x) @ np.abs(w.T)


def agree(math, got, want, size):
    # integers round a few values differently where x / scale is nearly half way
    tolerance = {"int8": 1e-2, "int16": 4e-6}.get(math, 2e-6)
    close = bool((np.abs(got - want) <= tolerance * size + 1e-6).all())
    return close and (math != "int8" or np.abs(got - want).mean() <= 1e-4 * size.mean())


def k_of(fmt, blocks):
    return (
        blocks * packing.BLOCK_LAYOUTS[fmt].block_elements
        if fmt in packing.BLOCK_LAYOUTS
        else 77 * blocks
    )


@pytest.mark.parametrize(("isa", "fmt", "math"), CASES)
def test_against_float64_and_batch_invariant(isa, fmt, math):
    rng = np.random.default_rng(len(fmt) + len(math))
    for blocks, n in ((1, 5), (3, 53)):
        k = k_of(fmt, blocks)
        stored = random_rows(fmt, n, k, rng)
        packed = Guarded((packing.packed_bytes(fmt, n, k),), np.uint8, 0)
        packed.array[:] = packing.pack(fmt, stored)
        x = rng.standard_normal((max(ROWS), k), np.float32)
        want, size = reference(fmt, math, x, decode(fmt, stored))
        whole = run(isa, fmt, math, x, packed.array, n)
        assert agree(math, whole, want, size)
        for rows in ROWS:
            for workers in (1, 2, 3):
                part = run(isa, fmt, math, x[-rows:], packed.array, n, workers=workers)
                assert (part.view(np.uint32) == whole[-rows:].view(np.uint32)).all(), (
                    rows,
                    workers,
                )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("fmt", "math"),
    [
        tuple(case.split())
        for case in ("q4_1 int16", "q8_0 int16", "q6_k int8", "bf16 f32", "q5_0 f32")
    ],
)
def test_runs_of_columns_with_and_without_a_rest(isa, fmt, math):
    """A worker walks several runs of columns at once, then what is left of them."""
    rng = np.random.default_rng(9)
    k = k_of(fmt, 1)
    for n in (16 * 12, 16 * 23 - 5, 16 * 42 - 15):
        gate, up = random_rows(fmt, n, k, rng), random_rows(fmt, n, k, rng)
        for gated in (False, True):
            packed = packing.pack_pair(fmt, gate, up) if gated else packing.pack(fmt, gate)
            x = rng.standard_normal((9, k), np.float32)
            whole = run(isa, fmt, math, x, packed, n, gated=gated)
            if not gated:
                assert agree(math, whole, *reference(fmt, math, x, decode(fmt, gate)))
            for rows in (1, 2, 4, 8):
                for workers in (1, 2, 3):
                    part = run(isa, fmt, math, x[:rows], packed, n, workers=workers, gated=gated)
                    assert (part == whole[:rows]).all(), (n, gated, rows, workers)


def swap_nibbles(blocks):
    blocks[..., 4:] = blocks[..., 4:] << 4 | blocks[..., 4:] >> 4


def halves_for_pairs(blocks):
    """Elements j and 16 + j in byte j, as another format has it."""
    low, high = blocks[..., 4:] & 15, blocks[..., 4:] >> 4
    e = np.stack([low, high], -1).reshape(*low.shape[:-1], 2, -1)
    blocks[..., 4:] = e[..., 0, :] | e[..., 1, :] << 4


def raise_zero(blocks):
    blocks[..., 2] += 1


@pytest.mark.parametrize("math", ["f32", "int8", "int16"])
@pytest.mark.parametrize("fault", [swap_nibbles, halves_for_pairs, raise_zero])
def test_planted_faults_are_caught(math, fault):
    rng, fmt, n, k = np.random.default_rng(6), "u4b_g64", 21, 192
    stored = random_rows(fmt, n, k, rng)
    x = rng.standard_normal((3, k), np.float32)
    want, size = reference(fmt, math, x, decode(fmt, stored))
    assert agree(math, run("portable", fmt, math, x, packing.pack(fmt, stored), n), want, size)
    planted = stored.copy()
    fault(planted.reshape(n, -1, 36))
    got = run("portable", fmt, math, x, packing.pack(fmt, planted), n)
    assert not agree(math, got, want, size)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("fmt", "math"),
    [tuple(case.split()) for case in GATED],
)
def test_gated(isa, fmt, math):
    rng = np.random.default_rng(3)
    n, k = 37, k_of(fmt, 2)
    gate, up = random_rows(fmt, n, k, rng), random_rows(fmt, n, k, rng)
    packed = packing.pack_pair(fmt, gate, up)
    x = rng.standard_normal((19, k), np.float32)
    g = run(isa, fmt, math, x, packing.pack(fmt, gate), n).astype(np.float64)
    u = run(isa, fmt, math, x, packing.pack(fmt, up), n)
    want = g * 0.5 * (1 + np.tanh(g / 2)) * u
    got = run(isa, fmt, math, x, packed, n, workers=2, gated=True)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    for rows in (1, 4):
        part = run(isa, fmt, math, x[:rows], packed, n, workers=3, gated=True)
        assert (part == got[:rows]).all()


@pytest.mark.parametrize("math", ["f32", "int16"])
@pytest.mark.parametrize("fmt", ["q5_0", "q4_1"])
@pytest.mark.parametrize("isa", ISAS)
def test_many_rows_split_by_rows_and_columns(isa, fmt, math):
    """Weights whose tiles of rows decode for themselves, and those that are decoded once."""
    rng = np.random.default_rng(4)
    n, k = 16, 320
    stored = random_rows(fmt, n, k, rng)
    packed = packing.pack(fmt, stored)
    x = rng.standard_normal((300, k), np.float32)
    whole = run(isa, fmt, math, x, packed, n)
    want, size = reference(fmt, math, x, decode(fmt, stored))
    assert (np.abs(whole - want) <= 2e-6 * size).all()
    for workers in (2, 3, 4):
        assert (run(isa, fmt, math, x, packed, n, workers=workers) == whole).all()
    for row in (0, 111, 299):
        assert (run(isa, fmt, math, x[row : row + 1], packed, n) == whole[row]).all()


@pytest.mark.parametrize("math", MOST)
@pytest.mark.parametrize("isa", ISAS)
def test_zero_activations_give_zero(isa, math):
    packed = packing.pack("q8_0", random_rows("q8_0", 16, 64, np.random.default_rng(5)))
    assert (run(isa, "q8_0", math, np.zeros((2, 64), np.float32), packed, 16) == 0).all()


@pytest.mark.parametrize("math", MOST)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_gives_none(isa, math, value):
    """Integers have no NaN: the scale of their run carries it, and to its own row only."""
    packed = packing.pack("q8_0", random_rows("q8_0", 16, 96, np.random.default_rng(5)))
    for at in (0, 17, 63, 95):
        x = np.ones((9, 96), np.float32)
        x[4, at] = value
        got = run(isa, "q8_0", math, x, packed, 16)
        assert np.isnan(got[4]).all()
        assert np.isfinite(np.delete(got, 4, 0)).all()


# Bytes of a stored block that hold its codes, and what makes them as far from zero as they get.
FARTHEST = {
    "q4_1": (20, slice(4, None), 0xFF), "q5_0": (22, slice(2, None), 0xFF),
    "q8_0": (34, slice(2, None), 0x80), "q3_k": (110, slice(0, 96), 0xFF),
    "q6_k": (210, slice(0, 192), 0xFF), "mxfp4": (17, slice(1, None), 0x77),
}  # fmt: skip


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("fmt", FARTHEST)
@pytest.mark.parametrize("math", MOST)
def test_largest_integers_fit_their_sums(isa, fmt, math):
    """All codes and all activations as large as they get, of one sign or of both."""
    rng = np.random.default_rng(13)
    n, k = 21, k_of(fmt, 2)
    stored = random_rows(fmt, n, k, rng)
    size, codes, fill = FARTHEST[fmt]
    stored.reshape(n, -1, size)[..., codes] = fill
    signs = np.stack([np.ones(k), -np.ones(k), np.where(np.arange(k) % 3, 1, -1)])
    x = np.tile(signs, (3, 1)).astype(np.float32)
    want, scale = reference(fmt, "f32", x, decode(fmt, stored))
    packed = packing.pack(fmt, stored)
    for rows in (1, 3, 9):
        got = run(isa, fmt, math, x[:rows], packed, n)
        assert (np.abs(got - want[:rows]) <= 2e-6 * scale[:rows]).all()


def test_scratch_formula_agrees_with_the_header():
    lib = library("portable")
    lib.scratch_bytes.restype = ctypes.c_int64
    for rows in (1, 2, 7, 8, 9, 100, 112, 113, 5000):
        for k in (1, 31, 32, 576, 4096, 4097, 14336):
            got = lib.scratch_bytes(ctypes.c_int64(rows), ctypes.c_int64(k))
            assert got == workspace.matmul_scratch_bytes(rows, k)


# ---- a matrix for each head


class HeadLinearArgs(ctypes.Structure):
    _fields_ = (
        [("x", ctypes.c_void_p), ("x_stride", ctypes.c_int64), ("x_head_stride", ctypes.c_int64)]
        + [("w", ctypes.c_void_p), ("y", ctypes.c_void_p)]
        + [(n, ctypes.c_int64) for n in ("y_stride", "y_head_stride", "rows", "heads", "n", "k")]
    )


def run_heads(isa, function, x, packed, n, workers=1):
    """y[rows, heads, n] out of x[rows, heads, k], both with other numbers between the heads."""
    rows, heads, k = x.shape
    wide = np.full((rows, heads + 1, k + 2), np.nan, np.float32)
    wide[:, :heads, :k] = x
    y = Guarded((rows, heads, n + 3))
    one = workspace.matmul_scratch_bytes(rows, k)
    args = HeadLinearArgs(
        pointer(wide), (heads + 1) * (k + 2), k + 2, pointer(packed), pointer(y.array),
        heads * (n + 3), n + 3, rows, heads, n, k,
    )  # fmt: skip
    for worker in range(workers):
        scratch = Guarded((one,), np.uint8, 0xFF)
        library(isa)[function](
            ctypes.byref(args), pointer(scratch.array), ctypes.c_int(worker), ctypes.c_int(workers)
        )
        scratch.check()
    y.check()
    assert np.isnan(y.array[..., n:]).all()
    return y.array[..., :n].copy()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("fmt", "n", "k"), [("f32", 33, 20), ("bf16", 24, 50), ("q8_0", 40, 64)])
def test_heads_against_float64_and_batch_invariant(isa, fmt, n, k):
    rng, heads = np.random.default_rng(11), 5
    stored = [random_rows(fmt, n, k, rng) for _ in range(heads)]
    packed = np.concatenate([packing.pack(fmt, rows) for rows in stored])
    x = rng.standard_normal((37, heads, k), np.float32)
    whole = run_heads(isa, f"heads_{fmt}", x, packed, n, workers=2)
    math = "bf16" if fmt == "bf16" else "f32"
    for head, rows in enumerate(stored):
        wanted, scale = reference(fmt, math, x[:, head], decode(fmt, rows))
        assert (np.abs(whole[:, head] - wanted) <= 1e-6 * scale).all()
    for begin, end in ((0, 1), (3, 5), (8, 37)):
        for workers in (1, 3, 13):
            part = run_heads(isa, f"heads_{fmt}", x[begin:end], packed, n, workers)
            np.testing.assert_array_equal(part, whole[begin:end])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("fmt", "n"), [("q4_1", 320), ("q8_0", 64), ("q6_k", 512), ("f8_g128", 384), ("mxfp4", 288)]
)
def test_turned_heads_against_float64_and_batch_invariant(isa, fmt, n):
    """Matrices stored the other way, [k, n], and k no multiple of a tile."""
    rng, heads, k = np.random.default_rng(12), 3, 21
    stored = [random_rows(fmt, k, n, rng) for _ in range(heads)]
    packed = np.concatenate([packing.pack(fmt, rows) for rows in stored])
    x = rng.standard_normal((23, heads, k), np.float32)
    whole = run_heads(isa, f"turned_{fmt}", x, packed, n, workers=2)
    for head, rows in enumerate(stored):
        wanted, scale = reference(fmt, "f32", x[:, head], decode(fmt, rows).T)
        assert (np.abs(whole[:, head] - wanted) <= 1e-6 * scale).all()
    for begin, end in ((0, 1), (3, 6), (8, 23)):
        for workers in (1, 3, 7):
            part = run_heads(isa, f"turned_{fmt}", x[begin:end], packed, n, workers)
            np.testing.assert_array_equal(part, whole[begin:end])
