"""CUDA kernels that write keys and values to pages, under emulation, against the interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from attention_world import DTYPES, ROUNDING
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
OWN = """func @body(%k: f32[T, 2, 33], %kv: cache[2, 33, 20, f32, page=16, v_in_k], %slots: i32[T])
    -> (cache[2, 33, 20, f32, page=16, v_in_k]) where T in 1..64 {
  %new = serve.k_append(%kv, %k, %slots) : cache[2, 33, 20, f32, page=16, v_in_k]
  return %new
}
"""
TEXTS = {
    "normed": NORMED, "turned": TURNED, "bare": BARE, "eight bits": EIGHT_BITS, "latent": LATENT,
    "own": OWN,
}  # fmt: skip


@pytest.fixture(scope="module")
def units() -> dict[str, CudaUnit]:
    made = compile_units([text.replace("\n    ", " ") for text in TEXTS.values()])
    return dict(zip(TEXTS, made, strict=True))


class Pools:
    """Guarded pools of a cache, all NaN."""

    def __init__(self, type_: CacheType) -> None:
        assert type_.page_tokens is not None
        dtype, pt = DTYPES[type_.dtype], type_.page_tokens
        shapes = [
            (PAGES, type_.kv_heads, type_.k_dim, pt),
            (PAGES, type_.kv_heads, pt, type_.v_dim),
        ]
        shapes = shapes[: 1 if type_.v_in_k else 2]
        self.memory = [guarded(int(np.prod(s)) * dtype.itemsize) for s in shapes]
        self.arrays = [
            m[0].view(dtype).reshape(s) for m, s in zip(self.memory, shapes, strict=True)
        ]
        self.addresses = np.array([a.ctypes.data for a in self.arrays] + [0], np.uint64)
        self.type = type_

    def pair(self) -> tuple[np.ndarray, np.ndarray]:
        if self.type.v_in_k:
            return pools_of_keys(self.arrays[0], self.type.v_dim)
        return self.arrays[0], self.arrays[1]

    def check(self, wanted: tuple[np.ndarray, np.ndarray]) -> None:
        """Slots hold what is wanted, within one rounding; all others are as they were."""
        for (inner, whole), array, want in zip(self.memory, self.arrays, wanted, strict=False):
            check_guards(inner, whole)
            got, want = array.astype(np.float64), want.astype(np.float64)
            assert (np.isnan(got) == np.isnan(want)).all()
            room = 2 * ROUNDING[self.type.dtype] * np.abs(want) + 2e-6
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
