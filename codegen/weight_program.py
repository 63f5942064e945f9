"""Evaluates weight expressions on stored tensors: the functions `@pack/<name>`.

A block-quantised value stays in stored bytes, `u8[..., row bytes]`: ops that only move whole rows
work on them as they are. All other ops run on the values by the cards' references.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inferc.errors import CompileError
from inferc.ir.blocks import FORMATS, dequantize
from inferc.ir.core import Func, Module, Op, Value
from inferc.ir.types import TensorType

Array = NDArray[np.generic]
Read = Callable[[str], Array]  # a parameter as stored: values, or raw rows of a block format
_MOVES = frozenset({"core.reshape", "core.transpose", "core.slice", "core.concat"})


@dataclass(frozen=True)
class Weight:
    """A weight ready to be packed: values, or raw rows if `type` is block-quantised."""

    type: TensorType
    array: Array

    def rows(self) -> NDArray[np.uint8]:
        """A matrix as stored bytes `u8[N, row bytes]`."""
        array = np.ascontiguousarray(self.array)
        if self.type.is_block:
            return array.view(np.uint8)
        return array.view(np.uint8).reshape(array.shape[0], -1)

    def values(self) -> NDArray[np.float32]:
        """Float32 values."""
        if self.type.is_block:
            return _dequantized(self.type, self.array)
        return self.array.astype(np.float32)


def weight_value(module: Module, name: str, type_: TensorType, read: Read) -> Weight:
    """The value of `param @name` of a step function."""
    func = module.funcs.get(f"pack/{name}")
    if func is None:
        return Weight(type_, _checked(name, type_, read(name)))
    return Weight(type_, _checked(name, type_, _run(func, read)))


def sources(module: Module, name: str) -> tuple[str, ...]:
    """Stored parameters that `param @name` is made of."""
    func = module.funcs.get(f"pack/{name}")
    return (name,) if func is None else tuple(func.params())


def _run(func: Func, read: Read) -> Array:
    values: dict[Value, Array] = {}
    last_use = {v: i for i, op in enumerate(func.ops) for v in op.operands}
    for i, op in enumerate(func.ops):
        if op.name == "param":
            name = str(op.attrs["name"])
            type_ = op.result.type
            assert isinstance(type_, TensorType)
            values[op.result] = _checked(name, type_, read(name))
        else:
            values[op.result] = _evaluate(op, [values[v] for v in op.operands])
        for value in op.operands:  # a layer's weights need not stay until the end
            if last_use[value] == i and value is not func.results[0]:
                values.pop(value, None)
    return values[func.results[0]]


def _evaluate(op: Op, operands: list[Array]) -> Array:
    types = [v.type for v in op.operands]
    if any(isinstance(t, TensorType) and t.is_block for t in types):
        return _evaluate_raw(op, operands)
    return np.asarray(op.card.reference(*operands, **op.attrs))


def _evaluate_raw(op: Op, operands: list[Array]) -> Array:
    source = op.operands[0].type
    assert isinstance(source, TensorType)
    if op.name == "core.cast":
        return np.asarray(op.card.reference(_dequantized(source, operands[0]), **op.attrs))
    if op.name not in _MOVES:
        raise CompileError(
            f"The weight expression {op.name} at {op.loc} reads {source} without a cast;"
            f" on stored blocks only {', '.join(sorted(_MOVES))} are possible."
        )
    if op.name == "core.reshape":
        shape = op.attrs["shape"]
        assert isinstance(shape, tuple)
        return operands[0].reshape(*shape[:-1], operands[0].shape[-1])  # type: ignore[arg-type]
    return np.asarray(op.card.reference(*operands, **op.attrs))


def _dequantized(type_: TensorType, raw: Array) -> NDArray[np.float32]:
    rows = raw.reshape(-1, raw.shape[-1]).view(np.uint8)
    return dequantize(type_.dtype, rows).reshape(_static(type_))


def _static(type_: TensorType) -> tuple[int, ...]:
    assert all(isinstance(s, int) for s in type_.shape)
    return tuple(int(s) for s in type_.shape)  # type: ignore[arg-type]


def _checked(name: str, type_: TensorType, array: Array) -> Array:
    expected = _static(type_)
    if type_.is_block:
        expected = (*expected[:-1], FORMATS[type_.dtype].row_bytes(expected[-1]))
    if array.shape != expected:
        raise CompileError(
            f"Weight {name}: expected {type_} (stored as {expected}), found shape {array.shape}."
        )
    return array
