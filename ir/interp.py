"""Reference interpreter: runs a function on numpy through the cards.

The oracle for passes, kernels and end-to-end tests. Floats are computed in `precision` (float32 or
float64) whatever their declared type; block-quantised and 16-bit parameters are widened when bound.

Parameters, and ops that depend on parameters only, are evaluated anew whenever they are read: the
interpreter never holds more weights than one op needs, so it also runs models of real size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from inferc.ir.blocks import dequantize
from inferc.ir.card import AttrValue
from inferc.ir.core import Func, Op, Value
from inferc.ir.dims import Dim, Size, evaluate
from inferc.ir.types import Memory, TensorType, Type, numpy_dtype
from inferc.ir.weights import weight_ops

Params = Callable[[str, Type], np.ndarray]
Array = Any  # an ndarray (of a state: its pool), or the pair of pools of a cache


class InterpretError(ValueError):
    """Inputs do not fit the function, or an op failed; the message has the op and its location."""


def run(
    func: Func,
    inputs: Sequence[Array],
    params: Params | None = None,
    *,
    precision: str = "f32",
    bindings: Mapping[str, int] | None = None,
) -> list[Array]:
    """Run `func`.

    Args:
        func: any function of any stage.
        inputs: one array an argument (a pair of pools for a cache), in order.
        params: gives the array of a parameter by name and type; block formats as f32 values or as
            raw u8 rows.
        precision: `f32` or `f64`, the float type of all arithmetic.
        bindings: values of symbols that no input shape determines.

    Returns:
        The results in order.
    """
    return _Interpreter(func, params, precision, dict(bindings or {})).run(inputs)


class _Interpreter:
    def __init__(
        self, func: Func, params: Params | None, precision: str, bindings: dict[str, int]
    ) -> None:
        self.func, self.params, self.bindings = func, params, bindings
        self.float = numpy_dtype(precision)
        self.env: dict[Value, Array] = {}
        self.weights = weight_ops(func)

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        if len(inputs) != len(self.func.args):
            raise InterpretError(
                f"@{self.func.name} takes {len(self.func.args)} inputs, got {len(inputs)}"
            )
        for arg, array in zip(self.func.args, inputs, strict=True):
            self._bind(arg, array)
            self.env[arg] = self._load(array)
        remaining = {v: len(v.uses) for op in self.func.ops for v in op.results}
        for op in self.func.ops:
            if op in self.weights:
                continue
            results = self._op(op, [self._read(v) for v in op.operands])
            self.env.update(zip(op.results, results, strict=True))
            for value in op.operands:  # free what nobody reads any more: layers add up
                if value in remaining:
                    remaining[value] -= 1
                    if remaining[value] <= 0 and not self.func.is_result(value):
                        self.env.pop(value, None)
        return [self._read(r) for r in self.func.results]

    def _read(self, value: Value) -> Array:
        """The array of a value; a weight is evaluated now."""
        if value.producer is None or value.producer not in self.weights:
            return self.env[value]
        op = value.producer
        return self._op(op, [self._read(v) for v in op.operands])[value.index]

    def _bind(self, arg: Value, array: Array) -> None:
        if isinstance(arg.type, Memory):
            return
        if len(array.shape) != arg.type.rank:
            raise InterpretError(f"%{arg.hint}: expected {arg.type}, got shape {array.shape}")
        for size, actual in zip(arg.type.shape, array.shape, strict=True):
            self._unify(arg, size, int(actual))

    def _unify(self, arg: Value, size: Size, actual: int) -> None:
        if isinstance(size, Dim):
            free = [s for s in size.symbols() if s not in self.bindings]
            if len(free) == 1:
                self.bindings[free[0]] = _solve(size, free[0], actual, self.bindings)
            elif free:
                raise InterpretError(f"%{arg.hint}: {size} leaves {free} open; pass bindings")
        if evaluate(size, self.bindings) != actual:
            raise InterpretError(f"%{arg.hint}: expected {size}, got {actual} ({self.bindings})")

    def _load(self, array: Array) -> Array:
        if isinstance(array, tuple):
            return tuple(a.astype(self.float, copy=False) for a in array)
        array = np.asarray(array)
        is_float = array.dtype.kind == "f" or array.dtype.name == "bfloat16"
        return array.astype(self.float, copy=False) if is_float else array

    def _op(self, op: Op, operands: list[Array]) -> Sequence[Array]:
        if op.name == "param":
            return [self._param(op)]
        if op.body is not None:
            inner = _Interpreter(op.body, self.params, "f32", dict(self.bindings))
            inner.float = self.float
            return inner.run(operands)
        attrs = {k: self._attr(v) for k, v in op.attrs.items()}
        try:
            out = op.card.reference(*operands, **attrs)
        except (ValueError, IndexError, TypeError) as error:
            raise InterpretError(f"{op.name} at {op.loc}: {error}") from error
        results = out if len(op.results) > 1 else (out,)
        return [self._fit(op, r, a) for r, a in zip(op.results, results, strict=True)]

    def _fit(self, op: Op, value: Value, array: Array) -> Array:
        if isinstance(value.type, Memory):
            return array
        expected = tuple(evaluate(s, self.bindings) for s in value.type.shape)
        if array.shape != expected:
            raise InterpretError(
                f"{op.name} at {op.loc}: declared {expected}, computed {array.shape}"
            )
        if value.type.is_float and array.dtype != self.float:
            return array.astype(self.float)
        return array

    def _param(self, op: Op) -> np.ndarray:
        type_ = op.result.type
        assert isinstance(type_, TensorType)
        if self.params is None:
            raise InterpretError(f"param @{op.attrs['name']} is read, but no parameters were given")
        array = self.params(str(op.attrs["name"]), type_)
        if type_.is_block and array.dtype == np.uint8:
            rows = array.reshape(-1, array.shape[-1])
            array = dequantize(type_.dtype, rows)
        shape = tuple(evaluate(s, self.bindings) for s in type_.shape)
        array = np.asarray(array).reshape(shape)
        return array.astype(self.float, copy=False) if type_.is_float else array

    def _attr(self, value: AttrValue) -> Any:
        if isinstance(value, Dim):
            return evaluate(value, self.bindings)
        if isinstance(value, tuple):
            return tuple(self._attr(v) for v in value)
        return value


def _solve(size: Dim, name: str, actual: int, bindings: Mapping[str, int]) -> int:
    """The value of `name` for which `size` is `actual`; size must be linear in it."""
    at = [evaluate(size, {**bindings, name: v}) for v in (0, 1, 2)]
    slope = at[1] - at[0]
    if slope == 0 or at[2] - at[1] != slope or (actual - at[0]) % slope:
        raise InterpretError(f"cannot solve {size} = {actual} for {name}")
    return (actual - at[0]) // slope
