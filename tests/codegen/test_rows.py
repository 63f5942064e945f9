"""Row kernels against the interpreter: TVM's and the plain ones."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from inferc.codegen import row_objects, row_program
from inferc.codegen.cache import Cache
from inferc.codegen.targets import parse_target
from inferc.errors import CompileError, ToolchainError
from inferc.ir.interp import run
from inferc.ir.parse import parse_func
from tests.codegen.row_runner import compile_row, random_arrays

ROWS = 5
# One unit in the last place of the largest element, some ten times: sums run in another order.
TOLERANCE = 2e-6
WIDTHS = (64, 100, 7)


def body(args: str, results: str, *lines: str) -> str:
    ops = "\n  ".join(lines)
    return f"func @b({args}) -> ({results}) where T in 1..512 {{\n  {ops}\n}}"


def unary(op: str, h: int, attrs: str = "") -> str:
    row = f"f32[T, {h}]"
    return body(f"%x: {row}", row, f"%y = {op}(%x) {attrs} : {row}", "return %y")


def norm_residual(h: int) -> str:
    row = f"f32[T, {h}]"
    return body(
        f"%x: {row}, %r: {row}, %w: f32[{h}]", f"{row}, {row}",
        f"%s = core.add(%x, %r) : {row}", f"%y = nn.rms_norm(%s, %w) {{eps = 1e-06}} : {row}",
        "return %s, %y",
    )  # fmt: skip


def sandwich(h: int) -> str:
    """Gemma: norm, residual, norm, two results."""
    row = f"f32[T, {h}]"
    return body(
        f"%x: {row}, %w: f32[{h}], %r: {row}, %v: f32[{h}]", f"{row}, {row}",
        f"%n = nn.rms_norm(%x, %w) {{eps = 1e-06}} : {row}", f"%s = core.add(%r, %n) : {row}",
        f"%y = nn.rms_norm(%s, %v) {{eps = 1e-06}} : {row}", "return %s, %y",
    )  # fmt: skip


def layer_norm_softmax(h: int) -> str:
    row = f"f32[T, {h}]"
    return body(
        f"%x: {row}, %w: f32[{h}], %b: f32[{h}]", f"{row}, {row}",
        f"%y = nn.layer_norm(%x, %w, %b) {{eps = 1e-05}} : {row}",
        f"%z = core.softmax(%y) {{axis = 1}} : {row}", "return %y, %z",
    )  # fmt: skip


def choice(h: int) -> str:
    row, bits = f"f32[T, {h}]", f"bool[T, {h}]"
    return body(
        f"%x: {row}, %r: {row}", row,
        '%z = core.constant() {values = (0.25,), shape = (), dtype = "f32"} : f32[]',
        f"%m = core.gt(%x, %z) : {bits}", f"%l = core.le(%r, %x) : {bits}",
        f"%b = core.logical_or(%m, %l) : {bits}", f"%d = core.div(%x, %r) : {row}",
        f"%a = core.abs(%d) : {row}", f"%s = core.sqrt(%a) : {row}",
        f"%y = core.where(%b, %s, %r) : {row}", "return %y",
    )  # fmt: skip


def glu(h: int, activation: str) -> str:
    row = f"f32[T, {h}]"
    line = f'%y = nn.glu(%g, %u) {{activation = "{activation}"}} : {row}'
    return body(f"%g: {row}, %u: {row}", row, line, "return %y")


HEADS = body(
    "%x: f32[T, 128], %w: f32[16], %c: f32[T, 6], %s: f32[T, 6]",
    "f32[T, 4, 16], f32[T, 64], f32[T, 4, 16]",
    "%a = core.slice(%x) {axis = 1, start = 32, stop = 96} : f32[T, 64]",
    "%r = core.reshape(%a) {shape = (T, 4, 16)} : f32[T, 4, 16]",
    "%n = nn.rms_norm(%r, %w) {eps = 1e-06} : f32[T, 4, 16]",
    "%o = nn.rope(%n, %c, %s) : f32[T, 4, 16]",
    '%i = nn.rope(%n, %c, %s) {pairing = "interleaved"} : f32[T, 4, 16]',
    "%f = core.reshape(%n) {shape = (T, 64)} : f32[T, 64]",
    "%t = core.tanh(%f) : f32[T, 64]",
    "return %o, %t, %i",
)
VIEWS = body(
    "%x: f32[T, 4, 16]", "f32[T, 16, 4], f32[T, 4, 20], f32[T, 64]",
    "%n = core.transpose(%x) {perm = (0, 2, 1)} : f32[T, 16, 4]",
    "%p = core.slice(%x) {axis = 2, start = 4, stop = 8} : f32[T, 4, 4]",
    "%e = core.erf(%p) : f32[T, 4, 4]",
    "%c = core.concat(%x, %e) {axis = 2} : f32[T, 4, 20]",
    "%t = core.exp(%n) : f32[T, 16, 4]",
    "%q = core.reshape(%t) {shape = (T, 64)} : f32[T, 64]",
    "%l = core.log(%q) : f32[T, 64]",
    "return %n, %c, %l",
)  # fmt: skip
FUNCTIONS = ("exp", "tanh", "sigmoid", "silu", "erf", "relu", "square", "neg", "abs")
CASES = {
    **{f"{f.__name__}-{h}": f(h) for f in (norm_residual, layer_norm_softmax) for h in WIDTHS},
    "norm_residual-576": norm_residual(576),
    "sandwich-640": sandwich(640),
    "choice-100": choice(100),
    **{f"glu-{a}": glu(96, a) for a in ("silu", "gelu", "gelu_tanh", "relu", "sigmoid")},
    **{f: unary(f"core.{f}", 40) for f in FUNCTIONS},
    "gelu": unary("core.gelu", 40),
    "gelu-tanh": unary("core.gelu", 40, '{approximate = "tanh"}'),
}


def check(text: str, *, tvm: bool, target: str = "cpu:native") -> None:
    kernel = compile_row(text, tvm=tvm, target=target)
    arrays = random_arrays(kernel.body, ROWS)
    expected = run(kernel.body, arrays)
    found = kernel(arrays, ROWS, workers=2, shift=1)
    for a, b in zip(found, expected, strict=True):
        assert np.abs(a - b).max() <= TOLERANCE * max(np.abs(b).max(), 1e-30)
    # A row alone gives the bits it gives among others.
    alone = [a[2:3] if len(a) == ROWS else a for a in arrays]
    for a, b in zip(kernel(alone, 1, shift=3), found, strict=True):
        np.testing.assert_array_equal(a[0], b[2])


@pytest.mark.parametrize("name", CASES)
def test_tvm_row(name: str) -> None:
    check(CASES[name], tvm=True)


@pytest.mark.parametrize("name", ["heads", "views"])
def test_tvm_row_of_several_axes(name: str) -> None:
    check({"heads": HEADS, "views": VIEWS}[name], tvm=True)


@pytest.mark.parametrize(
    "name", ["norm_residual-100", "layer_norm_softmax-7", "choice-100", "gelu"]
)
def test_plain_row(name: str) -> None:
    check(CASES[name], tvm=False)


@pytest.mark.parametrize(("rows", "workers"), [(1, 4), (1, 1), (3, 4), (5, 2)])
def test_take(rows: int, workers: int) -> None:
    text = body(
        "%x: f32[T, 40], %i: i32[3000]", "f32[T, 3000]",
        "%y = core.take(%x, %i) : f32[T, 3000]", "return %y",
    )  # fmt: skip
    kernel = compile_row(text, tvm=True)
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, 40)).astype(np.float32)
    columns = rng.integers(0, 40, 3000).astype(np.int32)
    np.testing.assert_array_equal(
        kernel([x, columns], rows, workers=workers, shift=1)[0], x[:, columns]
    )


@pytest.mark.parametrize("target", ["cpu:x86-64-v3", "cpu:portable"])
def test_other_vector_widths(target: str) -> None:
    for name in ("norm_residual-100", "gelu"):
        check(CASES[name], tvm=True, target=target)
        check(CASES[name], tvm=False, target=target)


@pytest.mark.parametrize(
    ("op", "low", "high"),
    [("exp", -100, 88), ("tanh", -12, 12), ("sigmoid", -90, 90), ("erf", -5, 5), ("silu", -90, 20)],
)
def test_functions_over_their_range(op: str, low: float, high: float) -> None:
    kernel = compile_row(unary(f"core.{op}", 4096), tvm=True)
    x = np.linspace(low, high, 4096, dtype=np.float32)[None]
    expected = run(kernel.body, [x], precision="f64")[0]
    found = kernel([x], 1)[0]
    error = np.abs(found - expected) / np.maximum(np.abs(expected), 1e-30)
    assert error[np.abs(expected) > 1e-37].max() < 1e-6
    assert np.abs(found - expected)[np.abs(expected) <= 1e-37].max(initial=0) < 1e-36


def test_objects_need_no_tvm(tmp_path: Path) -> None:
    """All that an object may want of others is libm."""
    text = row_program.row_text(parse_func(CASES["glu-gelu"]))
    made = row_objects.row_objects([("k", text)], parse_target("cpu:native"), Cache(tmp_path))
    wanted = subprocess.run(
        ["nm", "-u", str(made["k"])], capture_output=True, text=True, check=True
    ).stdout.split()
    assert set(wanted) <= {"U", "memset", "memcpy"}


def test_failure_of_the_child_is_an_error_naming_the_function(tmp_path: Path) -> None:
    target = parse_target("cpu:native")
    with pytest.raises(ToolchainError, match="TVM failed when lowering broken"):
        row_objects.row_objects([("broken", "func @f( nonsense")], target, Cache(tmp_path))


def test_crash_of_the_child_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crash = tmp_path / "python"
    crash.write_text('#!/bin/sh\necho "lowering k"\nkill -SEGV $$\n')
    crash.chmod(0o755)
    monkeypatch.setattr(row_objects.sys, "executable", str(crash))
    with pytest.raises(ToolchainError, match=r"TVM crashed \(signal 11\) when lowering k"):
        row_objects.row_objects([("k", "text")], parse_target("cpu:native"), Cache(tmp_path))


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (("%y = core.sum(%x) {axes = (0,)} : f32[1, 8]",), "only the last can be"),
        (("%y = core.slice(%x) {axis = 0, start = 0, stop = 1} : f32[1, 8]",), "cuts the row axis"),
        (("%y = core.gather_rows(%x, %i) : f32[T, 8]",), "is not element-wise"),
    ],
)
def test_refusals(lines: tuple[str, ...], reason: str) -> None:
    result = lines[-1].rpartition(" : ")[2]
    text = body("%x: f32[T, 8], %i: i32[T]", result, *lines, "return %y")
    assert reason in str(row_program.refusal(parse_func(text)))


def test_error_lists_every_candidate() -> None:
    text = body(
        "%x: f32[T, 8], %i: i32[T]", "f32[T, 8]", "%y = core.gather_rows(%x, %i) : f32[T, 8]",
        "%z = core.exp(%y) : f32[T, 8]", "return %z",
    )  # fmt: skip
    with pytest.raises(CompileError) as caught:
        compile_row(text, tvm=True)
    message = str(caught.value)
    assert "gather: other ops beside the gather" in message
    assert "row: core.gather_rows: is not element-wise" in message
    assert "from test" in message and "of another form: attention" in message
