"""KV append, rotary table, norms, embedding, gather, argmax, conversions and vector functions."""

import ctypes
import math

import numpy as np
import pytest
from kernel_library import ISAS, Guarded, call, formats_of, library, pointer
from kv_pool import KINDS, Pool, codes_and_scales, widen
from weights_cases import decode, encode, random_rows, to_bf16

from inferc.codegen import packing

P, INT, F, L = ctypes.c_void_p, ctypes.c_int32, ctypes.c_float, ctypes.c_int64


def split(function, *args, workers=2):
    for worker in range(workers):
        call(function, *args, INT(worker), INT(workers))


# ---- vector functions


def ulps(got, want):
    """Distance in units of the last place of the float32 result."""
    spacing = np.spacing(np.maximum(np.abs(want).astype(np.float32), np.float32(1.2e-38))).astype(
        np.float64
    )
    return np.abs(got.astype(np.float64) - want) / spacing


def erf(x):
    return np.vectorize(math.erf)(x)


FUNCTIONS = {
    "exp": (np.exp, -87, 88.7, 1.5),
    "log": (np.log, 1e-30, 1e4, 1.5),
    "tanh": (np.tanh, -12, 12, 2.5),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), -80, 80, 2.5),
    "erf": (erf, -5, 5, 7),
}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_vector_functions(isa, name):
    function, low, high, limit = FUNCTIONS[name]
    rng = np.random.default_rng(0)
    x = rng.uniform(low, high, 1 << 14).astype(np.float32)
    x[: 1 << 13] = np.clip(rng.standard_normal(1 << 13), low, high)
    y = np.empty_like(x)
    call(library(isa)[f"unary_{name}"], x, x.size, y)
    assert ulps(y, function(x.astype(np.float64))).max() <= limit


@pytest.mark.parametrize("isa", ISAS)
def test_activations_and_special_values(isa):
    lib = library(isa)
    x = np.linspace(-9, 9, 4096, dtype=np.float32)
    x64, y = x.astype(np.float64), np.empty_like(x)
    for name, want in (
        ("silu", x64 / (1 + np.exp(-x64))),
        ("gelu_erf", 0.5 * x64 * (1 + erf(x64 / math.sqrt(2)))),
        (
            "gelu_tanh",
            0.5 * x64 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x64 + 0.044715 * x64**3))),
        ),
        ("relu", np.maximum(x64, 0)),
    ):
        call(lib[f"unary_{name}"], x, x.size, y)
        np.testing.assert_allclose(y, want, rtol=3e-7, atol=1e-6)
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 89, -104, -90] + [1] * 8, np.float32)
    got = {}
    for name in ("exp", "log", "tanh", "sigmoid", "erf", "relu"):
        out = np.empty_like(special)
        call(lib[f"unary_{name}"], special, 16, out)
        got[name] = out
        assert np.isnan(out[4]), name
    assert (
        got["exp"][:4].tolist() == [1, 1, np.inf, 0]
        and got["exp"][5] == np.inf
        and got["exp"][6] == 0
    )
    assert got["log"][:3].tolist() == [-np.inf, -np.inf, np.inf] and np.isnan(got["log"][3])
    assert got["tanh"][2:4].tolist() == [1, -1] and got["sigmoid"][2:4].tolist() == [1, 0]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("how", ["convert_all", "convert_each"])
def test_conversions_round_as_numpy(isa, how):
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 1 << 32, 1 << 15, dtype=np.uint64).astype(np.uint32)
    exponent = np.where(
        np.arange(bits.size) % 2, rng.integers(90, 145, bits.size), bits >> 23 & 0xFF
    ).astype(np.uint32)
    x = (bits & ~np.uint32(0x7F800000) | exponent << 23).view(np.float32)
    x = np.where(np.isnan(x), np.float32(3), x)
    as_bf16, as_f16, back = (
        np.empty(x.size, np.uint16),
        np.empty(x.size, np.uint16),
        np.empty_like(x),
    )
    call(library(isa)[how], x, x.size, as_bf16, as_f16, back)
    with np.errstate(over="ignore"):
        assert (as_f16 == x.astype(np.float16).view(np.uint16)).all()
        assert (as_bf16 == to_bf16(x)).all()
        assert (back == x.astype(np.float16).astype(np.float32)).all()


# ---- row kernels


@pytest.mark.parametrize(
    ("isa", "fmt"), [(i, f) for i in ISAS for f in formats_of(i, packing.FORMATS)]
)
def test_embedding_from_packed_equals_dequantised(isa, fmt):
    rng = np.random.default_rng(2)
    k = packing.BLOCK_LAYOUTS[fmt].block_elements * 2 if fmt in packing.BLOCK_LAYOUTS else 33
    stored = random_rows(fmt, 37, k, rng)
    ids = rng.integers(0, 37, 9).astype(np.int32)
    out = Guarded((9, k + 2))
    split(
        library(isa)[f"embedding_{fmt}"],
        packing.pack(fmt, stored),
        ids,
        9,
        k,
        0.75,
        out.array,
        k + 2,
    )
    out.check()
    assert (out.array[:, :k] == decode(fmt, stored)[ids] * np.float32(0.75)).all()
    assert np.isnan(out.array[:, k:]).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("kind", "fmt"), list(enumerate(("f32", "bf16", "f16"))))
def test_embedding_from_rows(isa, kind, fmt):
    rng = np.random.default_rng(3)
    table = encode(fmt, rng.standard_normal((21, 45), np.float32)).reshape(21, -1)
    ids = np.array([20, 0, 3, 3, 7], np.int32)
    out = Guarded((5, 45))
    lib = library(isa)
    for worker in range(3):
        call(
            lib.dense_rows,
            INT(kind),
            table,
            45,
            ids,
            5,
            45,
            2.0,
            out.array,
            45,
            INT(worker),
            INT(3),
        )
    out.check()
    assert (out.array == decode(fmt, table)[ids] * np.float32(2)).all()


@pytest.mark.parametrize("isa", ISAS)
def test_rope_table_up_to_a_million(isa):
    positions = np.array([0, 1, 2, 511, 8191, 131071, 1048575], np.int32)
    inv_freq = (1 / 1e4 ** (np.arange(0, 64, 2) / 64)).astype(np.float32)
    cos, sin = Guarded((7, 32)), Guarded((7, 32))
    split(library(isa).rope, positions, 7, inv_freq, 32, 1.25, cos.array, sin.array)
    cos.check(), sin.check()
    angle = (positions.astype(np.float32)[:, None] * inv_freq).astype(np.float64)
    np.testing.assert_allclose(cos.array, np.cos(angle) * 1.25, rtol=0, atol=1.3e-7)
    np.testing.assert_allclose(sin.array, np.sin(angle) * 1.25, rtol=0, atol=1.3e-7)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("width", [1, 15, 16, 64, 100, 576])
def test_norms(isa, width):
    rng = np.random.default_rng(4)
    x = rng.standard_normal((5, width + 1), np.float32) + np.float32(0.5)
    w, b = rng.standard_normal((2, width), np.float32)
    x64, lib, nothing = x[:, :width].astype(np.float64), library(isa), P(0)
    for weight, bias in ((w, b), (nothing, nothing)):
        w64, b64 = (w, b) if weight is w else (1.0, 0.0)
        out = Guarded((5, width + 3))
        split(lib.rms, x, width + 1, weight, 1e-5, out.array, width + 3, 5, width, workers=3)
        out.check()
        want = x64 / np.sqrt((x64**2).mean(-1, keepdims=True) + 1e-5) * w64
        np.testing.assert_allclose(out.array[:, :width], want, rtol=2e-6, atol=1e-6)
        split(
            lib.layer, x, width + 1, weight, bias, 1e-5, out.array, width + 3, 5, width, workers=3
        )
        out.check()
        centred = x64 - x64.mean(-1, keepdims=True)
        want = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w64 + b64
        np.testing.assert_allclose(out.array[:, :width], want, rtol=2e-6, atol=2e-6)
        assert np.isnan(out.array[:, width:]).all()


@pytest.mark.parametrize("isa", ISAS)
def test_gather_and_argmax(isa):
    rng = np.random.default_rng(5)
    x = rng.standard_normal((6, 77), np.float32)
    rows = np.array([5, 0, 5], np.int32)
    out = Guarded((3, 77))
    split(library(isa).gather, x, 77, rows, 3, 77, out.array, 77)
    out.check()
    assert (out.array == x[rows]).all()
    x[0, [9, 70]] = 50
    x[1, 76] = 60
    x[2, 3] = np.nan
    x[3] = np.nan
    x[4] = -np.inf
    best = Guarded((6,), np.int32, -1)
    split(library(isa).argmax, x, 77, 6, 77, best.array)
    best.check()
    assert best.array.tolist() == [9, 76, int(np.nanargmax(x[2])), 0, 0, int(x[5].argmax())]


# ---- kv append


class KvAppendArgs(ctypes.Structure):
    _fields_ = (
        [("q", P), ("k", P), ("v", P), ("q_stride", L), ("k_stride", L), ("v_stride", L)]
        + [("q_out", P), ("q_out_stride", L), ("k_pool", P), ("v_pool", P), ("slots", P)]
        + [
            (n, INT)
            for n in (
                "tokens",
                "heads",
                "kv_heads",
                "k_dim",
                "v_dim",
                "page_tokens",
                "rotary_dim",
                "pairing",
            )
        ]
        + [("cos", P), ("sin", P), ("q_norm", P), ("k_norm", P), ("eps", F)]
    )


class KeyAppendArgs(ctypes.Structure):
    _fields_ = (
        [("own", P), ("shared", P), ("own_stride", L), ("shared_stride", L)]
        + [("own_norm", P), ("eps", F), ("cos", P), ("sin", P), ("rotary_dim", INT)]
        + [("pairing", INT), ("k_pool", P), ("slots", P)]
        + [(n, INT) for n in ("tokens", "kv_heads", "own_dim", "shared_dim", "page_tokens")]
    )


def turn(x, norm, cos, sin, rotary, interleaved):
    """Norm and rope in float64; x[T, heads, D]."""
    x = x.astype(np.float64)
    if norm is not None:
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * norm
    half = rotary // 2
    first = slice(0, rotary, 2) if interleaved else slice(0, half)
    second = slice(1, rotary, 2) if interleaved else slice(half, rotary)
    a, b = x[..., first].copy(), x[..., second].copy()
    c, s = cos[:, None].astype(np.float64), sin[:, None].astype(np.float64)
    x[..., first], x[..., second] = a * c - b * s, b * c + a * s
    return x


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("fmt", KINDS)
@pytest.mark.parametrize(
    ("rotary", "interleaved", "norm"), [(64, 0, True), (20, 1, False), (0, 0, False), (64, 1, True)]
)
def test_kv_append(isa, fmt, rotary, interleaved, norm):
    rng = np.random.default_rng(6)
    tokens, heads, kv_heads, d, e, pt, pages = 7, 4, 2, 64, 40, 16, 3
    width = heads * d + kv_heads * (d + e) + 3
    qkv = rng.standard_normal((tokens, width), np.float32)
    q, k, v = qkv, qkv[:, heads * d :], qkv[:, (heads + kv_heads) * d :]
    cos, sin = rng.standard_normal((2, tokens, rotary // 2), np.float32)
    weights = rng.standard_normal((2, d), np.float32)
    slots = rng.permutation(pages * pt)[:tokens].astype(np.int32)
    q_out = Guarded((tokens, heads * d + 1))
    k_pool = Pool(fmt, (pages, kv_heads, d, pt), 2)
    v_pool = Pool(fmt, (pages, kv_heads, pt, e), 3)
    norms = [pointer(w) if norm else P(0) for w in weights]
    args = KvAppendArgs(
        pointer(q), pointer(k), pointer(v), width, width, width,
        pointer(q_out.array), heads * d + 1, pointer(k_pool.memory.array),
        pointer(v_pool.memory.array),
        pointer(slots), tokens, heads, kv_heads, d, e, pt,
        rotary, interleaved, pointer(cos), pointer(sin), *norms, 1e-6,
    )  # fmt: skip
    for worker in range(3):
        library(isa).append(ctypes.byref(args), INT(KINDS.index(fmt)), INT(worker), INT(3))
    for buffer in (q_out, k_pool.memory, v_pool.memory):
        buffer.check()
    wq, wk = weights if norm else (None, None)
    want_q = turn(q[:, : heads * d].reshape(tokens, heads, d), wq, cos, sin, rotary, interleaved)
    np.testing.assert_allclose(
        q_out.array[:, :-1].reshape(want_q.shape), want_q, rtol=1e-5, atol=2e-6
    )
    assert np.isnan(q_out.array[:, -1]).all()
    want_k = turn(
        k[:, : kv_heads * d].reshape(tokens, kv_heads, d), wk, cos, sin, rotary, interleaved
    )
    at_k = (slots // pt, slice(None), slice(None), slots % pt)
    assert_stored(k_pool, at_k, want_k)
    at_v, want_v = (slots // pt, slice(None), slots % pt), v[:, : kv_heads * e]
    assert (v_pool.read(at_v) == widen(fmt, want_v.reshape(tokens, kv_heads, e))).all()
    untouched = np.ones((pages, pt), bool)
    untouched[slots // pt, slots % pt] = False
    page, at = np.nonzero(untouched)
    assert k_pool.untouched((page, slice(None), slice(None), at))
    assert v_pool.untouched((page, slice(None), at))


def assert_stored(pool, where, want):
    """Keys computed by the kernel, within the rounding of the pages of the wanted ones."""
    found = pool.read(where)
    if pool.kind == "i8":  # half a step, and a little for keys that are not quite the wanted ones
        _, scales = codes_and_scales(want)
        assert (np.abs(found - want) <= 0.5001 * scales).all()
        np.testing.assert_allclose(pool.scales[where], scales, rtol=1e-5)
    else:
        room = {"f32": 2e-6, "bf16": 2.0**-7, "f16": 2.0**-10}[pool.kind]
        np.testing.assert_allclose(found, want, rtol=room, atol=room)


@pytest.mark.parametrize("isa", ISAS)
def test_numbers_without_a_scale(isa):
    """A head of zeros is zeros; one with a number that is none, or infinite, has no number."""
    heads, dim, pt = 4, 24, 16
    rows = np.random.default_rng(8).standard_normal((1, heads, dim), np.float32)
    rows[0, 0] = 0
    rows[0, 1, 5], rows[0, 2, 7] = np.nan, -np.inf
    keys, slots = Pool("i8", (1, heads, dim, pt), 2), np.array([3], np.int32)
    args = KeyAppendArgs(
        own=pointer(rows), own_stride=heads * dim, k_pool=pointer(keys.memory.array),
        slots=pointer(slots), tokens=1, kv_heads=heads, own_dim=dim, page_tokens=pt,
    )  # fmt: skip
    library(isa).append_keys(ctypes.byref(args), INT(KINDS.index("i8")), INT(0), INT(1))
    found = keys.read((0, slice(None), slice(None), 3))
    assert (found[0] == 0).all() and not np.isfinite(found[1:3]).any()
    assert (found[3] == widen("i8", rows[0, 3])).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("fmt", KINDS)
@pytest.mark.parametrize(
    ("heads", "own", "shared", "rotary", "interleaved", "norm"),
    [(1, 50, 20, 20, 1, True), (1, 512, 64, 64, 0, True), (1, 24, 8, 0, 0, False),
     (3, 40, 0, 0, 0, False)],
)  # fmt: skip
def test_k_append(isa, fmt, heads, own, shared, rotary, interleaved, norm):
    rng = np.random.default_rng(7)
    tokens, pt, pages = 7, 16, 3
    rows = rng.standard_normal((tokens, heads * own + shared + 3), np.float32)
    behind = rows[:, heads * own :]
    cos, sin = rng.standard_normal((2, tokens, rotary // 2), np.float32)
    weight = rng.standard_normal(own, np.float32)
    slots = rng.permutation(pages * pt)[:tokens].astype(np.int32)
    pool = Pool(fmt, (pages, heads, own + shared, pt), 2)
    args = KeyAppendArgs(
        pointer(rows), pointer(behind) if shared else None, rows.shape[1], rows.shape[1],
        pointer(weight) if norm else None, 1e-6, pointer(cos), pointer(sin), rotary, interleaved,
        pointer(pool.memory.array), pointer(slots), tokens, heads, own, shared, pt,
    )  # fmt: skip
    for worker in range(3):
        library(isa).append_keys(ctypes.byref(args), INT(KINDS.index(fmt)), INT(worker), INT(3))
    pool.memory.check()
    none = np.zeros((tokens, 0), np.float32)
    latent = rows[:, : heads * own].reshape(tokens, heads, own)
    parts = [turn(latent, weight if norm else None, none, none, 0, 0)]
    if shared:
        parts.append(turn(behind[:, None, :shared], None, cos, sin, rotary, interleaved))
    wanted = np.concatenate(parts, -1)
    assert_stored(pool, (slots // pt, slice(None), slice(None), slots % pt), wanted)
    untouched = np.ones((pages, pt), bool)
    untouched[slots // pt, slots % pt] = False
    page, at = np.nonzero(untouched)
    assert pool.untouched((page, slice(None), slice(None), at))
