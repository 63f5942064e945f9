"""Experts under emulation, against the reference, in every form, and bit-equal for any batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from cuda_runner import ORDERS, CudaUnit, compile_units

from inferc.codegen import packing
from inferc.codegen.kernels_cuda.experts import EXPERTS
from inferc.ir.blocks import dequantize
from inferc.ir.blocks_encode import random_blocks
from inferc.ir.ops.experts import gated_activation
from inferc.ir.types import TensorType, numpy_dtype

CLAMPED = ", limit = 0.7, alpha = 1.702, offset = 1.0"
ROWS = 66


@dataclass(frozen=True)
class Shape:
    """Sizes, stored types, and the attributes of the op."""

    experts: int
    chosen: int
    hidden: int
    inner: int
    up: str = "f32"
    down: str = "f32"
    activation: str = "silu"
    gated: bool = True
    biased: bool = False
    clamped: bool = False

    def matrices(self) -> dict[str, TensorType]:
        e, h, i = self.experts, self.hidden, self.inner
        into = TensorType((e, i, h), self.up)
        gate = {"gate": into} if self.gated else {}
        return {**gate, "up": into, "down": TensorType((e, h, i), self.down)}

    def biases(self) -> dict[str, TensorType]:
        matrices = self.matrices() if self.biased else {}
        return {f"{n}_bias": TensorType(t.shape[:2], "f32") for n, t in matrices.items()}

    def body(self) -> str:
        k, h = self.chosen, self.hidden
        given = self.matrices() | self.biases()
        args = [f"%x: f32[T, {h}]", f"%indices: i64[T, {k}]", f"%amounts: f32[T, {k}]"]
        args += [f"%w_{n}: {t}" for n, t in given.items()]
        attrs = f'activation = "{self.activation}", gated = {str(self.gated).lower()}, '
        attrs += f"biased = {str(self.biased).lower()}{CLAMPED if self.clamped else ''}"
        operands = ", ".join(["%x", "%indices", "%amounts", *(f"%w_{n}" for n in given)])
        return (
            f"func @body({', '.join(args)}) -> (f32[T, {h}]) where T in 1..1024 {{\n"
            f"  %y = nn.experts({operands}) {{{attrs}}} : f32[T, {h}]\n  return %y\n}}\n"
        )

    def stored(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Random parameters as they are stored."""
        rng, out = np.random.default_rng(seed), dict[str, np.ndarray]()
        for name, type_ in (self.matrices() | self.biases()).items():
            shape = tuple(int(s) for s in type_.shape)  # type: ignore[arg-type]
            if type_.is_block:
                raw = random_blocks(type_.dtype, shape[0] * shape[1], shape[2], rng)
                out[name] = raw.reshape(*shape[:2], -1)
            elif type_.dtype == "i8":
                out[name] = rng.integers(-9, 10, shape).astype(np.int8)
            else:
                scaled = rng.standard_normal(shape) * 0.3
                out[name] = scaled.astype(numpy_dtype(type_.dtype))
        return out

    def packed(self, stored: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Operands of the kernel behind x, indices and amounts: a pair stands under both names."""

        def rows(name: str, e: int) -> np.ndarray:
            return stored[name][e].view(np.uint8)

        def each(fmt: str, name: str) -> np.ndarray:
            return np.concatenate([packing.pack(fmt, rows(name, e)) for e in range(self.experts)])

        biases = [stored[n] for n in self.biases()]
        if not self.gated:
            return [each(self.up, "up"), each(self.down, "down"), *biases]
        pairs = [
            packing.pack_pair(self.up, rows("gate", e), rows("up", e)) for e in range(self.experts)
        ]
        pair = np.concatenate(pairs)
        return [pair, pair, each(self.down, "down"), *biases]


SHAPES = {
    "odd sizes": Shape(7, 3, 37, 21),
    "one expert": Shape(1, 1, 16, 16, "bf16", "f16"),
    "clamped, with biases": Shape(5, 2, 64, 32, "mxfp4", "mxfp4", biased=True, clamped=True),
    "no gate": Shape(5, 4, 33, 48, activation="relu2", gated=False, biased=True),
    "blocks": Shape(35, 2, 32, 64, "q4_1", "q8_0"),
    "groups": Shape(4, 2, 128, 32, "u4b_g128", "i8", "gelu"),
}
ROUNDED = {
    "bf16": Shape(5, 2, 50, 34, "bf16", "bf16", "gelu_tanh"),
    "k blocks": Shape(3, 2, 256, 32, "q4_k", "q4_0", "gelu"),
}


@cache
def units() -> dict[str, CudaUnit]:
    exact = compile_units([s.body() for s in SHAPES.values()], compute="f32")
    rounded = compile_units([s.body() for s in ROUNDED.values()], sm=90)
    return dict(zip((*SHAPES, *ROUNDED), (*exact, *rounded), strict=True))


def inputs(shape: Shape, rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, choices and their weights: nobody chooses the last of several experts."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, shape.hidden)).astype(np.float32)
    most = max(1, shape.experts - 1)
    indices = np.stack([rng.permutation(most)[: shape.chosen] for _ in range(rows)])
    return x, indices.astype(np.int64), rng.random((rows, shape.chosen)).astype(np.float32)


def rounded(x: np.ndarray) -> np.ndarray:
    return x.astype(numpy_dtype("bf16")).astype(np.float64)


def reference(
    shape: Shape, stored: dict[str, np.ndarray], x: np.ndarray, indices: np.ndarray,
    amounts: np.ndarray, *, rounds: bool,
) -> np.ndarray:  # fmt: skip
    """By the definition in float64; `rounds`: what is multiplied by a matrix is rounded to bf16."""

    def matrix(name: str) -> np.ndarray:
        type_, array = shape.matrices()[name], stored[name]
        if not type_.is_block:
            return array.astype(np.float64)
        return dequantize(type_.dtype, array.reshape(-1, array.shape[-1])).reshape(type_.shape)

    w = {name: matrix(name) for name in shape.matrices()}

    def product(name: str, e: int, row: np.ndarray) -> np.ndarray:
        y = w[name][e] @ (rounded(row) if rounds else row.astype(np.float64))
        return y + stored[f"{name}_bias"][e] if shape.biased else y

    limits = (0.7, 1.702, 1.0) if shape.clamped else (None, 1.0, 0.0)
    out = np.zeros(x.shape)
    for row, chosen in np.ndindex(indices.shape):
        e = int(indices[row, chosen])
        if not 0 <= e < shape.experts:
            continue
        gate = product("gate", e, x[row]) if shape.gated else None
        h = gated_activation(gate, product("up", e, x[row]), shape.activation, *limits)
        out[row] += amounts[row, chosen] * product("down", e, h)
    return out


def run(name: str, given: tuple[np.ndarray, ...], order: int = 0) -> np.ndarray:
    shape = (SHAPES | ROUNDED)[name]
    weights = shape.packed(shape.stored())
    (y,) = units()[name]([*given, *weights], len(given[0]), order=order)
    return y


def check(name: str, tolerance: float, order: int, rows: int = ROWS) -> None:
    shape = (SHAPES | ROUNDED)[name]
    x, indices, amounts = inputs(shape, rows)
    indices[3, 0] = -1  # nothing is chosen
    wanted = reference(shape, shape.stored(), x, indices, amounts, rounds=name in ROUNDED)
    found = run(name, (x, indices, amounts), order)
    assert np.abs(found - wanted).max() < tolerance * np.abs(wanted).max()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", SHAPES)
def test_against_the_reference(name: str, order: int) -> None:
    check(name, 3e-6, order)


def test_so_few_rows_that_nothing_is_listed() -> None:
    for rows in (4, 11):  # the last one lists 33 pairs
        check("odd sizes", 3e-6, 0, rows)


@pytest.mark.parametrize("name", ROUNDED)
def test_rounded_activations(name: str) -> None:
    check(name, 3e-3, 0)  # rounding turns where float32 and float64 differ in the last place


@pytest.mark.parametrize("name", ["odd sizes", "k blocks", "bf16"])
def test_what_a_row_gets_depends_on_the_row_only(name: str) -> None:
    given = inputs((SHAPES | ROUNDED)[name], ROWS)
    whole = run(name, given)
    for start, stop in ((0, 1), (7, 9), (50, 60), (20, 66)):
        part = run(name, tuple(np.ascontiguousarray(a[start:stop]) for a in given))
        np.testing.assert_array_equal(part, whole[start:stop])


def test_more_pairs_than_one_block_lists() -> None:
    shape = SHAPES["one expert"]
    check("one expert", 3e-6, 0, rows=600)
    assert EXPERTS.kernels[0] == "_counts" and 600 * shape.chosen > 512


def test_all_rows_to_one_expert() -> None:
    shape = SHAPES["odd sizes"]
    x, indices, amounts = inputs(shape, ROWS)
    indices[:] = [4, 0, 2]
    wanted = reference(shape, shape.stored(), x, indices, amounts, rounds=False)
    found = run("odd sizes", (x, indices, amounts))
    assert np.abs(found - wanted).max() < 3e-6 * np.abs(wanted).max()
