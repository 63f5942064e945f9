"""Row kernels of CUDA against the interpreter: rows in registers, and loops that a block shares."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from inferc.codegen.group import has_rows, row_shape, tensor
from inferc.ir.core import Func, Value
from inferc.ir.interp import run
from inferc.ir.parse import parse_func
from tests.codegen.cuda.cuda_runner import ORDERS, CudaUnit, compile_units
from tests.codegen.test_rows import CASES, HEADS, VIEWS, body, layer_norm_softmax, norm_residual

TOLERANCE = 2e-6
FILE = Path(__file__).with_name("row_bodies.ir")


def scaled_rows(h: int) -> str:
    """Single values a row and a vector of one element beside rows."""
    row = f"f32[T, {h}]"
    return body(
        f"%x: {row}, %s: f32[T, 1], %v: f32[1]", row, f"%a = core.mul(%x, %s) : {row}",
        f"%y = core.add(%a, %v) : {row}", "return %y",
    )  # fmt: skip


def integers(h: int) -> str:
    row, bits = f"i32[T, {h}]", f"bool[T, {h}]"
    return body(
        f"%x: {row}, %d: i32[{h}]",
        f"{row}, f32[T, {h}], i64[T, {h}], i32[T, 1], i64[T, 1]",
        f"%q = core.mul(%x, %d) : {row}", f"%m = core.gt(%q, %x) : {bits}",
        f"%n = core.logical_not(%m) : {bits}",
        f'%f = core.cast(%n) {{dtype = "f32"}} : f32[T, {h}]',
        f'%l = core.cast(%x) {{dtype = "i64"}} : i64[T, {h}]', f"%b = core.neg(%x) : {row}",
        "%u = core.amax(%b) {axes = (1,)} : i32[T, 1]",
        "%s = core.sum(%l) {axes = (1,)} : i64[T, 1]", "return %q, %f, %l, %u, %s",
    )  # fmt: skip


REDUCTIONS = body(
    "%x: f32[T, 5, 40]", "f32[T, 40], f32[T, 5], f32[T, 40], f32[T, 1, 1]",
    "%s = core.sum(%x) {axes = (1,), keepdim = false} : f32[T, 40]",
    "%m = core.amax(%x) {axes = (2,), keepdim = false} : f32[T, 5]",
    '%c = core.constant() {values = (1.0, 2.0, 3.0, 4.0), shape = (4, 1), dtype = "f32"}'
    " : f32[4, 1]",
    "%r = core.reshape(%s) {shape = (T, 4, 10)} : f32[T, 4, 10]",
    "%p = core.mul(%r, %c) : f32[T, 4, 10]",
    "%f = core.reshape(%p) {shape = (T, 40)} : f32[T, 40]",
    "%a = core.mean(%x) {axes = (1, 2), keepdim = true} : f32[T, 1, 1]",
    "return %s, %m, %f, %a",
)  # fmt: skip
ROUTER = body(
    "%x: f32[T, 70]", "f32[T, 9], i64[T, 9], f32[T, 70]",
    "%v, %i = core.topk(%x) {k = 9} : f32[T, 9], i64[T, 9]",
    "%n = core.neg(%v) : f32[T, 9]", "%p = core.put_along(%x, %i, %n) : f32[T, 70]",
    "return %v, %i, %p",
)  # fmt: skip
FOURS = body(
    "%x: f32[T, 6, 40], %s: f32[T, 1], %h: f32[6, 1], %w: f32[6, 16], %c: f32[T, 8], %d: f32[T, 8]",
    "f32[T, 6, 24], f32[T, 96], f32[T, 6, 16], f32[T, 6, 18], f32[T, 6, 16]",
    "%a = core.slice(%x) {axis = 2, start = 8, stop = 24} : f32[T, 6, 16]",
    "%b = core.slice(%x) {axis = 2, start = 3, stop = 19} : f32[T, 6, 16]",
    "%m = core.mul(%a, %w) : f32[T, 6, 16]", "%n = core.add(%m, %h) : f32[T, 6, 16]",
    "%f = core.reshape(%n) {shape = (T, 96)} : f32[T, 96]", "%g = core.mul(%f, %s) : f32[T, 96]",
    "%e = core.slice(%x) {axis = 2, start = 32, stop = 40} : f32[T, 6, 8]",
    "%j = core.concat(%a, %e) {axis = 2} : f32[T, 6, 24]",
    "%q = core.slice(%x) {axis = 2, start = 0, stop = 2} : f32[T, 6, 2]",
    "%k = core.concat(%q, %b) {axis = 2} : f32[T, 6, 18]",
    "%r = nn.rope(%b, %c, %d) : f32[T, 6, 16]",
    "%t = core.exp(%r) : f32[T, 6, 16]",
    "return %j, %g, %t, %k, %b",
)  # fmt: skip
BLOCK = {
    **CASES,
    "norm_residual-1036": norm_residual(1036),
    "norm_residual-4096": norm_residual(4096),
    "layer_norm_softmax-2560": layer_norm_softmax(2560),
    "parts": scaled_rows(1300),
    "scaled": scaled_rows(20),
}
LOOPS = {
    "heads": HEADS, "views": VIEWS, "reductions": REDUCTIONS, "router": ROUTER, "fours": FOURS,
    "odd": norm_residual(301), "odd-scaled": scaled_rows(1301), "integers": integers(37),
}  # fmt: skip


def real_bodies() -> dict[str, str]:
    return {
        f"{re.findall(r'^// (.*)$', chunk, re.M)[-1]}-{i}": chunk
        for i, chunk in enumerate(re.split(r"^// -----\n", FILE.read_text(), flags=re.M))
    }


ALL = {**BLOCK, **LOOPS, **real_bodies()}


@cache
def units() -> dict[str, CudaUnit]:
    return dict(zip(ALL, compile_units(list(ALL.values())), strict=True))


def array(value: Value, rows: int, rng: np.random.Generator) -> np.ndarray:
    type_ = tensor(value)
    shape = (rows, *row_shape(type_)) if has_rows(type_) else row_shape(type_)
    if type_.dtype in ("i32", "i64"):
        return rng.integers(1, 5, shape).astype({"i32": np.int32, "i64": np.int64}[type_.dtype])
    return rng.standard_normal(shape).astype(np.float32)


def arrays(function: Func, rows: int) -> list[np.ndarray]:
    rng = np.random.default_rng(rows)
    return [array(a, rows, rng) for a in function.args]


@pytest.mark.parametrize("name", ALL)
def test_row_kernel(name: str) -> None:
    unit = units()[name]
    wide = sum(np.prod(row_shape(tensor(a))) for a in unit.group.body.args) > 500
    for rows in (1, 3) if wide else (1, 70):
        given = arrays(unit.group.body, rows)
        expected = run(parse_func(ALL[name]), given)
        for order in ORDERS:
            for a, b in zip(unit(given, rows, order=order), expected, strict=True):
                assert a.dtype == b.dtype
                assert np.abs(a - b).max() <= TOLERANCE * max(np.abs(b).max(), 1e-30)


@pytest.mark.parametrize("name", ["norm_residual-64", "layer_norm_softmax-2560", "heads", "router"])
def test_a_row_alone_gives_the_bits_it_gives_among_others(name: str) -> None:
    unit = units()[name]
    given = arrays(unit.group.body, 5)
    whole = unit(given, 5)
    alone = unit([a[2:3] if len(a) == 5 else a for a in given], 1, order=ORDERS[1])
    for a, b in zip(alone, whole, strict=True):
        np.testing.assert_array_equal(a[0], b[2])


def test_which_kernel_takes_a_body() -> None:
    odd = {name for name in CASES if name.endswith(("-7",))}
    found = {name: units()[name].unit.definition.name for name in ALL}
    assert {found[name] for name in set(BLOCK) - odd} == {"row_block"}
    assert {found[name] for name in odd | set(LOOPS)} == {"row_loops"}


def test_selection_ranks_what_is_no_number_last() -> None:
    x = np.full((2, 70), np.nan, np.float32)
    x[0, [5, 60]] = 1.0
    values, indices, _ = units()["router"]([x], 2)
    assert list(indices[0][:2]) == [5, 60] and list(values[0][:2]) == [1.0, 1.0]
    assert (indices >= 0).all() and (indices < 70).all()


@pytest.mark.parametrize(
    ("op", "low", "high"),
    [("exp", -100, 88), ("tanh", -12, 12), ("sigmoid", -90, 90), ("erf", -5, 5), ("silu", -90, 20)],
)
def test_functions_over_their_range(op: str, low: float, high: float) -> None:
    unit = units()[op]
    x = np.linspace(low, high, 4000, dtype=np.float32).reshape(100, 40)
    expected = run(parse_func(ALL[op]), [x], precision="f64")[0]
    found = unit([x], 100)[0]
    error = np.abs(found - expected) / np.maximum(np.abs(expected), 1e-30)
    assert error[np.abs(expected) > 1e-37].max() < 1e-6
