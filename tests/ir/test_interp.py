"""The interpreter: shapes bound to symbols, weights on demand, groups, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inferc.ir.blocks_encode import quantize
from inferc.ir.interp import InterpretError, run
from inferc.ir.parse import parse_func
from inferc.ir.types import Type

TWICE = """func @f(%x: f32[2*B, S], %y: f32[B + 1]) -> (f32[2*B, S], f32[B + 1]) \
where B in 1..8, S in 1..8 {
  %a = core.add(%x, %x) : f32[2*B, S]
  return %a, %y
}
"""


def test_symbols_are_solved_from_shapes() -> None:
    a, _ = run(parse_func(TWICE), [np.ones((6, 5)), np.ones(4)])
    assert a.shape == (6, 5)
    assert a.dtype == np.float32


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([np.ones((6, 5)), np.ones(3)], "%y: expected B \\+ 1, got 3"),
        ([np.ones((5, 5)), np.ones(4)], "cannot solve 2\\*B = 5 for B"),
        ([np.ones((6, 5, 1)), np.ones(4)], "%x: expected f32"),
        ([np.ones((6, 5))], "@f takes 2 inputs, got 1"),
    ],
)
def test_inputs_that_do_not_fit(inputs: list[Any], message: str) -> None:
    with pytest.raises(InterpretError, match=message):
        run(parse_func(TWICE), inputs)


def test_open_symbols_need_bindings() -> None:
    func = parse_func(
        "func @f(%x: f32[B*S]) -> (f32[B, S]) where B in 1..8, S in 1..8 {\n"
        "  %a = core.reshape(%x) {shape = (B, S)} : f32[B, S]\n  return %a\n}"
    )
    with pytest.raises(InterpretError, match="pass bindings"):
        run(func, [np.ones(6)])
    (found,) = run(func, [np.ones(6)], bindings={"B": 2})
    assert found.shape == (2, 3)


WEIGHTS = """func @f(%x: f32[B, 4]) -> (f32[B, 6]) where B in 1..8 {
  %w = param @a : f32[3, 4]
  %v = param @b : f32[3, 4]
  %c = core.concat(%w, %v) {axis = 0} : f32[6, 4]
  %y = core.linear(%x, %c) : f32[B, 6]
  return %y
}
"""


def test_weights_are_evaluated_when_they_are_read() -> None:
    asked: list[str] = []

    def params(name: str, type_: Type) -> np.ndarray:
        asked.append(name)
        return np.full((3, 4), {"a": 1.0, "b": 2.0}[name])

    (found,) = run(parse_func(WEIGHTS), [np.ones((2, 4))], params)
    np.testing.assert_array_equal(found, [[4, 4, 4, 8, 8, 8]] * 2)
    assert asked == ["a", "b"]


def test_params_are_required() -> None:
    with pytest.raises(InterpretError, match="param @a is read, but no parameters were given"):
        run(parse_func(WEIGHTS), [np.ones((2, 4))])


def test_raw_blocks_are_dequantised() -> None:
    func = parse_func("func @f() -> (q8_0[2, 32]) {\n  %w = param @w : q8_0[2, 32]\n  return %w\n}")
    values = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)
    (raw,) = run(func, [], lambda name, type_: quantize("q8_0", values))
    (given,) = run(func, [], lambda name, type_: values)
    assert raw.shape == (2, 32)
    np.testing.assert_allclose(raw, values, atol=1e-2)
    np.testing.assert_array_equal(given, values)


def test_a_failing_op_is_named_with_its_place() -> None:
    func = parse_func(
        "func @f(%x: f32[4, 2], %i: i32[1]) -> (f32[1, 2]) {\n"
        '  %a = core.gather_rows(%x, %i) : f32[1, 2] loc("layers.3", "Norm")\n  return %a\n}'
    )
    with pytest.raises(InterpretError, match=r'core\.gather_rows at "layers\.3", "Norm"'):
        run(func, [np.ones((4, 2)), np.array([7])])


def test_groups_run_their_body_in_the_same_precision() -> None:
    func = parse_func(
        "func @f(%x: f32[B, 2]) -> (f32[B, 2]) where B in 1..8 {\n"
        "  %g = fuse.group(%a = %x) : f32[B, 2] {\n    %e = core.exp(%a) : f32[B, 2]\n"
        "    yield %e\n  }\n  return %g\n}"
    )
    x = np.array([[0.1, 0.2]])
    assert run(func, [x])[0].dtype == np.float32
    np.testing.assert_array_equal(run(func, [x], precision="f64")[0], np.exp(x))


def test_casts_round_also_in_float64() -> None:
    func = parse_func(
        "func @f(%x: f32[1]) -> (bf16[1], f32[1]) {\n"
        '  %a = core.cast(%x) {dtype = "bf16"} : bf16[1]\n'
        '  %b = core.cast(%x) {dtype = "f32"} : f32[1]\n  return %a, %b\n}'
    )
    a, b = run(func, [np.array([1.001])], precision="f64")
    assert a == 1.0
    assert b == 1.001  # float64 stands for float32, or every difference would drown in its rounding
