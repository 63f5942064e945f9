"""Rows of tables on CUDA: every format, stored and packed."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from inferc.codegen import packing
from inferc.ir.interp import run
from inferc.ir.parse import parse_func
from tests.codegen.cuda.cuda_runner import ORDERS, CudaUnit, compile_units
from tests.codegen.kernels.weights_cases import decode, random_rows
from tests.codegen.test_rows import body

ENTRIES = 37
FORMATS = tuple(f for f in packing.FORMATS if f != "i8")
STORED = ("f32", "bf16", "f16")
ODD, ALIGNED = 39, 520


def width_of(fmt: str) -> int:
    return ODD if fmt in packing.DENSE_BYTES else 512


def packed_table(fmt: str) -> str:
    """A dead cast makes the table one that is not only looked up in: it is packed."""
    k = width_of(fmt)
    return body(
        f"%w: {fmt}[{ENTRIES}, {k}], %ids: i32[T]", f"f32[T, {k}]",
        f"%y = core.embedding(%w, %ids) : f32[T, {k}]",
        f'%dead = core.cast(%w) {{dtype = "f32"}} : f32[{ENTRIES}, {k}]', "return %y",
    )  # fmt: skip


def stored_table(fmt: str, k: int) -> str:
    """Scaled by a constant."""
    return body(
        f"%w: {fmt}[{ENTRIES}, {k}], %ids: i32[T]", f"f32[T, {k}]",
        f"%e = core.embedding(%w, %ids) : f32[T, {k}]",
        '%c = core.constant() {values = (2.5,), shape = (), dtype = "f32"} : f32[]',
        f"%y = core.mul(%e, %c) : f32[T, {k}]", "return %y",
    )  # fmt: skip


EPILOGUE = body(
    f"%w: f32[{ENTRIES}, 24], %ids: i32[T], %x: f32[T, 24], %w1: f32[24]", "f32[T, 24]",
    "%e = core.embedding(%w, %ids) : f32[T, 24]", "%a = core.add(%e, %x) : f32[T, 24]",
    "%y = core.mul(%a, %w1) : f32[T, 24]", "return %y",
)  # fmt: skip
TEXTS = {
    **{f"packed-{fmt}": packed_table(fmt) for fmt in FORMATS},
    **{f"stored-{fmt}-{k}": stored_table(fmt, k) for fmt in STORED for k in (ODD, ALIGNED)},
    "epilogue": EPILOGUE,
}


@cache
def units() -> dict[str, CudaUnit]:
    return dict(zip(TEXTS, compile_units(list(TEXTS.values())), strict=True))


def ids(rows: int) -> np.ndarray:
    return np.random.default_rng(rows).integers(0, ENTRIES, rows).astype(np.int32)


@pytest.mark.parametrize("fmt", FORMATS)
def test_packed_table(fmt: str) -> None:
    unit = units()[f"packed-{fmt}"]
    assert unit.unit.definition.name == "embedding" and "PackedTable<" in unit.unit.code
    stored = random_rows(fmt, ENTRIES, width_of(fmt), np.random.default_rng(7))
    values = decode(fmt, stored)
    for rows in (1, 19):
        for order in ORDERS:
            (found,) = unit([packing.pack(fmt, stored), ids(rows)], rows, order=order)
            np.testing.assert_array_equal(found, values[ids(rows)])


@pytest.mark.parametrize("fmt", STORED)
@pytest.mark.parametrize("k", [ODD, ALIGNED])
def test_stored_table(fmt: str, k: int) -> None:
    unit = units()[f"stored-{fmt}-{k}"]
    stored = random_rows(fmt, ENTRIES, k, np.random.default_rng(3))
    expected = decode(fmt, stored).reshape(ENTRIES, k)[ids(9)] * np.float32(2.5)
    for order in ORDERS:
        (found,) = unit([stored, ids(9)], 9, order=order)
        np.testing.assert_array_equal(found, expected)


def test_epilogue() -> None:
    unit, rng, rows = units()["epilogue"], np.random.default_rng(1), 6
    table, x, w = (
        rng.standard_normal(s).astype(np.float32) for s in ((ENTRIES, 24), (rows, 24), (24,))
    )
    arrays = [table, ids(rows), x, w]
    expected = run(parse_func(EPILOGUE), arrays)
    for order in ORDERS:
        np.testing.assert_array_equal(unit(arrays, rows, order=order), expected)
