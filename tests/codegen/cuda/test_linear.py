"""Matrix products for CUDA in every weight format: against float64, bit-equal for any batch."""

import numpy as np
import pytest
from cuda_runner import ORDERS, compile_units
from weights_cases import decode, from_bf16, random_rows, to_bf16

from inferc.codegen import packing
from inferc.codegen.kernel import KernelOptions
from inferc.codegen.kernels_cuda.linear import WGMMA_FORMATS, activation_terms
from inferc.codegen.targets import parse_target

# Those left out differ from others in the type of a scale or in the length of a record alone.
FORMATS = [
    fmt
    for fmt in packing.FORMATS
    if fmt not in ("u4_g64", "u4b_g32", "u4b_g64", "u8_g64", "u8_g128", "u8b_g32", "u8b_g128")
]
FEW = (33, 1, 5, 8, 9)
MANY = (195, 66)
"""One block of tokens and more, with either order of threads."""
MOST = 320


def k_of(fmt):
    """Two or three records; for dense formats an odd number."""
    if fmt not in packing.BLOCK_LAYOUTS:
        return 77
    block = packing.BLOCK_LAYOUTS[fmt].block_elements
    return block * (2 if block == 256 else 3)


def plain(fmt, n, k):
    return f"""func @main(%x: f32[T, {k}], %w: {fmt}[{n}, {k}]) -> (f32[T, {n}])
    where T in 1..{MOST} {{
  %y = core.linear(%x, %w) : f32[T, {n}]
  return %y
}}"""


def gated(fmt, n, k):
    w = f"{fmt}[{n}, {k}]"
    return f"""func @main(%x: f32[T, {k}], %w: {w}, %w2: {w}) -> (f32[T, {n}])
    where T in 1..{MOST} {{
  %a = core.linear(%x, %w) : f32[T, {n}]
  %b = core.linear(%x, %w2) : f32[T, {n}]
  %y = nn.glu(%a, %b) {{activation = "silu"}} : f32[T, {n}]
  return %y
}}"""


def residual(fmt, n, k):
    """A bias, a residual, and two results."""
    w, y = f"{fmt}[{n}, {k}]", f"f32[T, {n}]"
    return f"""func @main(%x: f32[T, {k}], %w: {w}, %wb: f32[{n}], %r: {y}) -> ({y}, {y})
    where T in 1..{MOST} {{
  %l = core.linear(%x, %w, %wb) : f32[T, {n}]
  %y = core.add(%r, %l) : f32[T, {n}]
  %z = core.gelu(%l) {{approximate = "tanh"}} : f32[T, {n}]
  return %y, %z
}}"""


class Fenced:
    """An array with NaN before and behind it."""

    def __init__(self, array):
        raw = np.full(array.nbytes + 1024, 0xFF, np.uint8)
        start = 256 + -raw.ctypes.data % 256
        raw[start : start + array.nbytes] = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
        self.raw, self.address = raw, raw.ctypes.data + start


def run(unit, arrays, rows, order):
    fenced = [Fenced(array) for array in arrays]
    return unit([f.address for f in fenced], rows, order=order)


def rounded(fmt, compute, x):
    options = KernelOptions(parse_target("cuda:sm_80"), compute)
    return x if activation_terms(fmt, options) == 3 else from_bf16(to_bf16(x))


def product(fmt, compute, x, stored):
    """float64 product and the scale of its rounding errors."""
    x, w = rounded(fmt, compute, x).astype(np.float64), decode(fmt, stored).astype(np.float64)
    return x @ w.T, np.abs(x) @ np.abs(w.T)


def check_every_batch(unit, fmt, compute, n, k, rng, many=MANY):
    """A row has the same bits in every batch; wgmma's, where it is let in, are its own."""
    stored = random_rows(fmt, n, k, rng)
    packed = packing.pack(fmt, stored)
    x = rng.standard_normal((max(many), k), np.float32)
    want, size = product(fmt, compute, x, stored)
    wgmma = unit.fast and unit.emulation.context.sm == 90
    wgmma = wgmma and fmt in WGMMA_FORMATS and compute != "f32"
    runs = [(rows, order) for rows in FEW for order in ORDERS]
    runs += [(rows, ORDERS[rows % 2]) for rows in many]
    wholes = {}
    for rows, order in sorted(runs, reverse=True):
        (got,) = run(unit, [x[:rows], packed], rows, order)
        assert (np.abs(got - want[:rows]) <= 3e-6 * size[:rows]).all(), (rows, order)
        whole = wholes.setdefault(wgmma and rows in many, got.copy())
        assert (got.view(np.uint32) == whole[:rows].view(np.uint32)).all(), (rows, order)


@pytest.fixture(scope="module")
def every_format():
    cases = [(fmt, 50 if i % 2 else 24, k_of(fmt)) for i, fmt in enumerate(FORMATS)]
    units = compile_units([plain(*case) for case in cases], sm=90, fast_prefill=True)
    return {case[0]: (unit, *case[1:]) for case, unit in zip(cases, units, strict=True)}


@pytest.mark.parametrize("fmt", FORMATS)
def test_against_float64_and_batch_invariant(every_format, fmt):
    unit, n, k = every_format[fmt]
    check_every_batch(unit, fmt, "auto", n, k, np.random.default_rng(len(fmt)))


EXACT = (
    ("bf16", 40, 96),
    ("f32", 17, 70),
    ("f16", 16, 130),
    ("q4_k", 20, 512),
    ("nf4_g64", 33, 64),
)
GATED = (("bf16", 40, 64), ("q6_k", 24, 256), ("u4_g32", 33, 96))
RESIDUAL = ("q8_0", 50, 320)


@pytest.fixture(scope="module")
def exact_units():
    texts = [plain(*c) for c in EXACT] + [gated(*c) for c in GATED] + [residual(*RESIDUAL)]
    return compile_units(texts, compute="f32", sm=80)


@pytest.mark.parametrize(("sm", "fast"), [(80, True), (90, True), (90, False)])
def test_long_rows(sm, fast):
    """Barriers of stages go through several phases; activations are rounded.

    With 4 multiprocessors and so many columns, blocks of 192 tokens have fewer rounds at 260.
    """
    cases = (*EXACT[:2], ("i8", 40, 400), ("f16", 272, 70))
    texts = [plain(*c) for c in cases] + [gated("bf16", 24, 77)]
    units = compile_units(texts, sm=sm, fast_prefill=fast)
    for (fmt, n, k), unit in zip(cases, units, strict=False):
        many = (260, 66) if n > 256 else MANY
        check_every_batch(unit, fmt, "auto", n, k, np.random.default_rng(2), many)
    check_gated(units[-1], "bf16", "auto", 24, 77, (66, 2))


@pytest.mark.parametrize("case", range(len(EXACT)))
def test_three_terms_are_float32(exact_units, case):
    fmt, n, k = EXACT[case]
    check_every_batch(exact_units[case], fmt, "f32", n, k, np.random.default_rng(case))


@pytest.mark.parametrize("case", range(len(GATED)))
def test_gated_pair(exact_units, case):
    fmt, n, k = GATED[case]
    check_gated(exact_units[len(EXACT) + case], fmt, "f32", n, k, (70, 19, 2))


def check_gated(unit, fmt, compute, n, k, batches):
    rng = np.random.default_rng(n)
    gate, up = random_rows(fmt, n, k, rng), random_rows(fmt, n, k, rng)
    packed = packing.pack_pair(fmt, gate, up)
    x = rng.standard_normal((max(batches), k), np.float32)
    (g, g_size), (u, u_size) = product(fmt, compute, x, gate), product(fmt, compute, x, up)
    bent = g * 0.5 * (1 + np.tanh(g / 2))
    allowed = 3e-6 * (1.1 * g_size * abs(u) + abs(bent) * u_size) + 1e-6
    for rows in batches:
        for order in ORDERS:
            (got,) = run(unit, [x[:rows], packed, packed], rows, order)
            assert (np.abs(got - bent[:rows] * u[:rows]) <= allowed[:rows]).all()


def test_epilogue_of_bias_residual_and_two_results(exact_units):
    fmt, n, k = RESIDUAL
    rng = np.random.default_rng(9)
    stored = random_rows(fmt, n, k, rng)
    x = rng.standard_normal((11, k), np.float32)
    bias, r = rng.standard_normal(n, np.float32), rng.standard_normal((11, n), np.float32)
    want = product(fmt, "f32", x, stored)[0] + bias
    bent = want / 2 * (1 + np.tanh(0.7978845608 * (want + 0.044715 * want**3)))
    for rows in (11, 3):
        y, z = run(exact_units[-1], [x[:rows], packing.pack(fmt, stored), bias, r[:rows]], rows, 0)
        np.testing.assert_allclose(y, (want + r)[:rows], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(z, bent[:rows], rtol=1e-5, atol=1e-5)
