"""CUDA kernels that write keys and values to pages, under emulation, against the interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from attention_world import DTYPES, ROUNDING, codes_and_scales
from cuda_runner import ORDERS, CudaUnit, check_guards, compile_units, guarded

from inferc.ir.interp import run
from inferc.ir.ops.serve import pools_of_keys
from inferc.ir.types import CacheType, TensorType

PAGES = 4
SLOTS = tuple(int(s) for s in np.random.default_rng(5).permutation(PAGES * 16)[:37])
NORMED = """func @body(%x: f32[T, 160], %wq: f32[20], %cos: f32[T, 8], %sin: f32[T, 8],
    %wk: f32[20], %kv: cache[2, 20, 12, bf16, page=16], %slots: i32[T])
    -> (f32[T, 4, 20], cache[2, 20, 12, bf16, page=16]) where T in 1..64 {
  %q0 = core.slice(%x) {axis = 1, start = 0, stop = 80} : f32[T, 80]
  %q1 = core.reshape(%q0) {shape = (T, 4, 20)} : f32[T, 4, 20]
  %q2 = nn.rms_norm(%q1, %wq) {eps = 1e-05} : f32[T, 4, 20]
  %q3 = nn.rope(%q2, %cos, %sin) : f32[T, 4, 20]
  %k0 = core.slice(%x) {axis = 1, start = 80, stop = 120} : f32[T, 40]
  %k1 = core.reshape(%k0) {shape = (T, 2, 20)} : f32[T, 2, 20]
  %k2 = nn.rms_norm(%k1, %wk) {eps = 1e-05} : f32[T, 2, 20]
  %k3 = nn.rope(%k2, %cos, %sin) : f32[T, 2, 20]
  %v0 = core.slice(%x) {axis = 1, start = 120, stop = 144} : f32[T, 24]
  %v1 = core.reshape(%v0) {shape = (T, 2, 12)} : f32[T, 2, 12]
  %new = serve.kv_append(%kv, %k3, %v1, %slots) : cache[2, 20, 12, bf16, page=16]
  return %q3, %new
}
"""
TURNED = """func @body(%q: f32[T, 3, 70], %k: f32[T, 1, 70], %v: f32[T, 1, 65], %cos: f32[T, 35],
    %sin: f32[T, 35], %kv: cache[1, 70, 65, f32, page=16], %slots: i32[T])
    -> (f32[T, 3, 70], cache[1, 70, 65, f32, page=16]) where T in 1..64 {
  %q1 = nn.rope(%q, %cos, %sin) {pairing = "interleaved"} : f32[T, 3, 70]
  %k1 = nn.rope(%k, %cos, %sin) {pairing = "interleaved"} : f32[T, 1, 70]
  %new = serve.kv_append(%kv, %k1, %v, %slots) : cache[1, 70, 65, f32, page=16]
  return %q1, %new
}
"""
BARE = """func @body(%k: f32[T, 3, 16], %v: f32[T, 3, 40], %kv: cache[3, 16, 40, f16, page=16],
    %slots: i32[T]) -> (cache[3, 16, 40, f16, page=16]) where T in 1..64 {
  %new = serve.kv_append(%kv, %k, %v, %slots) : cache[3, 16, 40, f16, page=16]
  return %new
}
"""
EIGHT_BITS = BARE.replace("f16,", "f8e4m3,")
SCALED = NORMED.replace("bf16,", "i8,")
LATENT = """func @body(%x: f32[T, 60], %w: f32[48], %cos: f32[T, 2], %sin: f32[T, 2],
    %kv: cache[1, 54, 48, bf16, page=16, v_in_k], %slots: i32[T])
    -> (cache[1, 54, 48, bf16, page=16, v_in_k]) where T in 1..64 {
  %c = core.slice(%x) {axis = 1, start = 4, stop = 52} : f32[T, 48]
  %n = nn.rms_norm(%c, %w) {eps = 1e-06} : f32[T, 48]
  %n1 = core.reshape(%n) {shape = (T, 1, 48)} : f32[T, 1, 48]
  %s = core.slice(%x) {axis = 1, start = 52, stop = 58} : f32[T, 6]
  %s1 = core.reshape(%s) {shape = (T, 1, 6)} : f32[T, 1, 6]
  %r = nn.rope(%s1, %cos, %sin) {pairing = "interleaved"} : f32[T, 1, 6]
  %k = core.concat(%n1, %r) {axis = 2} : f32[T, 1, 54]
  %new = serve.k_append(%kv, %k, %slots) : cache[1, 54, 48, bf16, page=16, v_in_k]
  return %new
}
"""
SCALED_LATENT = LATENT.replace("bf16,", "i8,")
OWN = """func @body(%k: f32[T, 2, 33], %kv: cache[2, 33, 20, f32, page=16, v_in_k], %slots: i32[T])
    -> (cache[2, 33, 20, f32, page=16, v_in_k]) where T in 1..64 {
  %new = serve.k_append(%kv, %k, %slots) : cache[2, 33, 20, f32, page=16, v_in_k]
  return %new
}
"""
TEXTS = {
    "normed": NORMED, "turned": TURNED, "bare": BARE, "eight bits": EIGHT_BITS, "latent": LATENT,
    "own": OWN, "scaled": SCALED, "scaled latent": SCALED_LATENT,
}  # fmt: skip


@pytest.fixture(scope="module")
def units() -> dict[str, CudaUnit]:
    made = compile_units([text.replace("\n    ", " ") for text in TEXTS.values()])
    return dict(zip(TEXTS, made, strict=True))


class Pools:
    """Guarded pools of a cache, all NaN."""

    def __init__(self, type_: CacheType) -> None:
        assert type_.page_tokens is not None
        self.type, pt = type_, type_.page_tokens
        self.shapes = [
            (PAGES, type_.kv_heads, type_.k_dim, pt),
            (PAGES, type_.kv_heads, pt, type_.v_dim),
        ][: 1 if type_.v_in_k else 2]
        sizes = [int(np.prod(s)) * DTYPES[type_.dtype].itemsize for s in self.shapes]
        if type_.dtype == "i8":
            sizes = [n + PAGES * type_.kv_heads * pt * 4 for n in sizes]
        assert sum(sizes) == PAGES * pt * type_.bytes_per_token
        self.memory = [guarded(n) for n in sizes]
        self.addresses = np.array([m[0].ctypes.data for m in self.memory] + [0], np.uint64)

    @property
    def arrays(self) -> list[np.ndarray]:
        """The numbers; of i8 those that codes and scales stand for, as a copy."""
        if self.type.dtype == "i8":
            return [codes * scales for codes, scales in self.scaled()]
        dtype = DTYPES[self.type.dtype]
        return [m[0].view(dtype).reshape(s) for m, s in zip(self.memory, self.shapes, strict=True)]

    def scaled(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Codes and scales of K and of V."""
        pools = zip(self.memory, self.shapes, (2, 3), strict=False)
        return [codes_and_scales(m[0], shape, axis) for m, shape, axis in pools]

    def pair(self) -> tuple[np.ndarray, np.ndarray]:
        arrays = self.arrays
        if self.type.v_in_k:
            return pools_of_keys(arrays[0], self.type.v_dim)
        return arrays[0], arrays[1]

    def check(self, wanted: tuple[np.ndarray, np.ndarray]) -> None:
        """Slots hold what is wanted, within one rounding; all others are as they were."""
        pools = zip(self.memory, self.arrays, wanted, (2, 3), strict=False)
        for (inner, whole), array, want, dims in pools:
            check_guards(inner, whole)
            got, want = array.astype(np.float64), want.astype(np.float64)
            assert (np.isnan(got) == np.isnan(want)).all()
            room = 2 * ROUNDING[self.type.dtype] * np.abs(want) + 2e-6
            if self.type.dtype == "i8":  # nor does it look for the largest of a token and head
                room = np.abs(want).max(dims, keepdims=True) / 254 * 1.0001 + 2e-6
            if self.type.dtype == "f8e4m3":  # the interpreter does not round
                want, room = np.clip(want, -448, 448), room + 2.0**-10
            assert np.nanmax(np.abs(got - want) - room) <= 0


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("order", ORDERS)
def test_pages_and_queries(name: str, order: int, units: dict[str, CudaUnit]) -> None:
    unit, rng = units[name], np.random.default_rng(3)
    for rows in (len(SLOTS), 16, 1):
        inputs, operands, pools = [], [], None
        for arg in unit.group.body.args:
            if isinstance(arg.type, CacheType):
                pools = Pools(arg.type)
                inputs.append(pools.pair())
                operands.append(pools.addresses.ctypes.data)
                continue
            assert isinstance(arg.type, TensorType)
            shape = tuple(n if isinstance(n, int) else rows for n in arg.type.shape)
            # Some are too large for f8e4m3.
            array = (rng.standard_normal(shape) * (300 if name == "eight bits" else 1)).astype("f4")
            inputs.append(np.array(SLOTS[:rows], np.int32) if arg.hint == "slots" else array)
            operands.append(inputs[-1])
        assert pools is not None
        *queries, cache = run(unit.group.body, inputs)
        for got, want in zip(unit(operands, rows, order=order), queries, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-6)
        pools.check(cache)


def test_codes_and_scales(units: dict[str, CudaUnit]) -> None:
    """The largest of a token and head has 127; zeros have a scale of 0; what is no number stays."""
    unit, rng = units["scaled"], np.random.default_rng(3)
    pools = Pools(next(a.type for a in unit.group.body.args if isinstance(a.type, CacheType)))
    x = rng.standard_normal((3, 160)).astype(np.float32)
    x[0, 120:132] = 0.0
    x[1, 121] = np.nan
    slots, turned = np.array(SLOTS[:3], np.int32), np.ones((3, 8), np.float32)
    weights = np.ones(20, np.float32)
    unit([x, weights, turned, turned, weights, pools.addresses.ctypes.data, slots], 3)
    (k_codes, _), (v_codes, v_scales) = pools.scaled()
    values = x[:, 120:144].reshape(3, 2, 12)
    for t, (page, at) in enumerate(divmod(int(s), 16) for s in slots):
        assert (np.abs(k_codes[page, :, :, at]).max(1) == 127).all()
        scales = np.abs(values[t]).max(1) / np.float32(127)
        np.testing.assert_array_equal(v_scales[page, :, at, 0], scales)
        for head, scale in enumerate(scales):
            if np.isfinite(scale):
                wanted = np.rint(values[t, head] / scale) if scale > 0 else np.zeros(12)
                np.testing.assert_array_equal(v_codes[page, head, at], wanted)
