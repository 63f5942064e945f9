"""Products by head under emulation: beside the interpreter, and bit-equal for any batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from cuda_runner import ORDERS, CudaUnit, compile_units

from inferc.codegen import packing
from inferc.ir.blocks import dequantize
from inferc.ir.blocks_encode import random_blocks
from inferc.ir.interp import run
from inferc.ir.parse import parse_func
from inferc.ir.types import TensorType, numpy_dtype

ROWS = 45


@dataclass(frozen=True)
class Shape:
    """Sizes; `before` numbers stand before x in each head, `beside` behind the product."""

    heads: int
    n: int
    k: int
    dtype: str
    turned: bool = False
    before: int = 0
    beside: int = 0
    rotary: int = 0
    pairing: str = "half"

    @property
    def width(self) -> int:
        return self.before + self.k + self.beside

    def matrix(self) -> TensorType:
        shape = (self.k, self.n) if self.turned else (self.n, self.k)
        return TensorType((self.heads, *shape), self.dtype)

    def body(self) -> str:
        """Heads of `width`: the product reads a slice of them, what stands beside is another."""
        h, k, r = self.heads, self.k, self.rotary // 2
        out = f"f32[T, {h}, {self.n + self.beside}]"
        lines = [
            f"%a = core.slice(%x) {{axis = 2, start = {self.before}, stop = {self.before + k}, "
            f"step = 1}} : f32[T, {h}, {k}]",
            f"%p = nn.head_linear(%a, %w) {{turned = {str(self.turned).lower()}}} : "
            f"f32[T, {h}, {self.n}]",
        ]
        last = "%p"
        if self.beside:
            part = f"f32[T, {h}, {self.beside}]"
            lines.append(
                f"%b = core.slice(%x) {{axis = 2, start = {self.before + k}, "
                f"stop = {self.width}, step = 1}} : {part}"
            )
            beside = "%b"
            if r:
                attrs = f'{{pairing = "{self.pairing}"}}'
                lines.append(f"%t = nn.rope(%b, %cos, %sin) {attrs} : {part}")
                beside = "%t"
            lines.append(f"%y = core.concat(%p, {beside}) {{axis = 2}} : {out}")
            last = "%y"
        angles = f", %cos: f32[T, {r}], %sin: f32[T, {r}]" if r else ""
        return (
            f"func @body(%x: f32[T, {h}, {self.width}], %w: {self.matrix()}{angles}) -> ({out}) "
            "where T in 1..64 {\n  " + "\n  ".join(lines) + f"\n  return {last}\n}}\n"
        )

    def stored(self) -> np.ndarray:
        rng, type_ = np.random.default_rng(1), self.matrix()
        shape = tuple(int(s) for s in type_.shape)  # type: ignore[arg-type]
        if type_.is_block:
            raw = random_blocks(type_.dtype, shape[0] * shape[1], shape[2], rng)
            return raw.reshape(*shape[:2], -1)
        return (rng.standard_normal(shape) * 0.3).astype(numpy_dtype(type_.dtype))

    def values(self) -> np.ndarray:
        type_, array = self.matrix(), self.stored()
        if not type_.is_block:
            return array.astype(np.float64)
        return dequantize(type_.dtype, array.reshape(-1, array.shape[-1])).reshape(type_.shape)

    def packed(self) -> np.ndarray:
        each = [packing.pack(self.dtype, matrix.view(np.uint8)) for matrix in self.stored()]
        return np.concatenate(each)

    def inputs(self) -> list[np.ndarray]:
        """x, then cosines and sines."""
        rng = np.random.default_rng(0)
        x = rng.standard_normal((ROWS, self.heads, self.width)).astype(np.float32)
        angles = rng.standard_normal((ROWS, self.rotary // 2)).astype(np.float32)
        return [x, np.cos(angles), np.sin(angles)] if self.rotary else [x]


SHAPES = {
    "odd, alone": Shape(3, 20, 37, "f32"),
    "beside": Shape(2, 32, 16, "bf16", before=5, beside=6),
    "turns": Shape(2, 16, 32, "q8_0", beside=8, rotary=6),
    "interleaved": Shape(4, 48, 64, "q4_1", before=4, beside=4, rotary=4, pairing="interleaved"),
    "turned": Shape(2, 96, 21, "q5_1", turned=True, beside=4, rotary=4),
    "turned, k blocks": Shape(1, 256, 16, "q6_k", turned=True),
    "turned, floats": Shape(2, 128, 20, "nf4_g64", turned=True, before=1),
}
ROUNDED = {"rounded": Shape(2, 24, 50, "bf16", beside=2)}


@cache
def units() -> dict[str, CudaUnit]:
    exact = compile_units([s.body() for s in SHAPES.values()], compute="f32")
    rounded = compile_units([s.body() for s in ROUNDED.values()], sm=90)
    return dict(zip((*SHAPES, *ROUNDED), (*exact, *rounded), strict=True))


def call(name: str, rows: slice, order: int = 0) -> np.ndarray:
    shape = (SHAPES | ROUNDED)[name]
    x, *angles = (np.ascontiguousarray(a[rows]) for a in shape.inputs())
    (y,) = units()[name]([x, shape.packed(), *angles], len(x), order=order)
    return y


def wanted(shape: Shape, *, rounds: bool) -> np.ndarray:
    x, *angles = shape.inputs()
    if rounds:  # what is multiplied, not what stands beside
        part = x[..., : shape.before + shape.k]
        part[...] = part.astype(numpy_dtype("bf16")).astype(np.float32)
    body = parse_func(shape.body())
    values = [x, shape.values(), *angles]
    return run(body, values, lambda *_: None, precision="f64")[0]


@pytest.mark.parametrize("name", (*SHAPES, *ROUNDED))
def test_against_the_reference(name: str) -> None:
    reference = wanted((SHAPES | ROUNDED)[name], rounds=name in ROUNDED)
    for order in ORDERS:
        found = call(name, slice(0, ROWS), order)
        assert np.abs(found - reference).max() < 3e-6 * np.abs(reference).max()


@pytest.mark.parametrize("name", SHAPES)
def test_what_a_row_gets_depends_on_the_row_only(name: str) -> None:
    whole = call(name, slice(0, ROWS))
    for start, stop in ((0, 1), (7, 15), (20, 45)):
        np.testing.assert_array_equal(call(name, slice(start, stop)), whole[start:stop])
