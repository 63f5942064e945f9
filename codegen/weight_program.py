"""Evaluates weight expressions on stored tensors: the functions `@pack/<name>`.

A block-quantised value stays in stored bytes, `u8[..., row bytes]`: ops that only move whole rows
work on them as they are. All other ops run on the values by the cards' references.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inferc.errors import CompileError
from inferc.ir.blocks import FORMATS, dequantize
from inferc.ir.core import Func, Module, Op, Value
from inferc.ir.types import TensorType

Array = NDArray[np.generic]
Read = Callable[[str], Array]  # a parameter as stored: values, or raw rows of a block format
Entries = Callable[[str], Callable[[int], Array] | None]  # reads an entry of a stack, if it can
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
    return Weight(type_, _checked(name, type_, _run(func.ops, func.results[0], read)))


def weight_entries(
    module: Module, name: str, type_: TensorType, read: Read, release: Callable[[str], None],
    entries: Entries = lambda name: None,
) -> Iterator[Weight]:  # fmt: skip
    """The value of `param @name` of a step function, one entry of its first axis after another.

    Entries that are stored one by one are read one by one, and so are those of a stack that
    `entries` can read in parts. What an entry was made of is released before the next.
    """
    entry_type = type_.with_shape(type_.shape[1:])
    parts = _stored_entries(module.funcs.get(f"pack/{name}"), entry_type)
    if parts is None:
        for array in _entries_of_stack(module, name, type_, read, entries):
            yield Weight(entry_type, array)
            for source in sources(module, name):
                release(source)
        return
    for part in parts:
        ops = _cone(part)
        yield Weight(entry_type, _checked(name, entry_type, _run(ops, part, read)))
        for op in ops:
            if op.name == "param":
                release(str(op.attrs["name"]))


def _entries_of_stack(
    module: Module, name: str, type_: TensorType, read: Read, entries: Entries
) -> Iterator[Array]:
    """Entries of a stack that is stored as one tensor."""
    func = module.funcs.get(f"pack/{name}")
    source, ops = (name, ()) if func is None else _moves_of_entries(func)
    read_entry = entries(source) if source is not None else None
    if read_entry is None:
        yield from weight_value(module, name, type_, read).array
        return
    expected = type_.with_shape((1, *type_.shape[1:]))
    for i in range(_static(type_)[0]):
        stack = read_entry(i)[None]  # the ops keep the first axis: they work on any part of it
        for op in ops:
            stack = _evaluate(op, [stack])
        yield _checked(name, expected, stack)[0]


def _moves_of_entries(func: Func) -> tuple[str | None, tuple[Op, ...]]:
    """The only parameter of a function that moves numbers within entries, and its ops in order.

    None for other functions.
    """
    first, *ops = func.ops
    value = first.results[0]
    for op in ops:
        within = (op.name == "core.slice" and op.attrs["axis"] != 0) or (
            op.name == "core.transpose" and op.attrs["perm"][0] == 0  # type: ignore[index]
        )
        if not within or op.operands != (value,):
            return None, ()
        value = op.result
    if first.name != "param" or func.results[0] is not value:
        return None, ()
    return str(first.attrs["name"]), tuple(ops)


def _stored_entries(func: Func | None, entry_type: TensorType) -> tuple[Value, ...] | None:
    """The entries, where the function stacks matrices of this type; else None."""
    op = None if func is None else func.results[0].producer
    if op is None or op.name != "core.reshape" or op.operands[0].producer is None:
        return None
    stack = op.operands[0].producer
    equal = all(v.type == entry_type for v in stack.operands)
    if stack.name != "core.concat" or stack.attrs["axis"] != 0 or not equal:
        return None
    return stack.operands


def _cone(value: Value) -> list[Op]:
    """What a value is computed from, in order."""
    found: dict[Op, None] = {}

    def visit(op: Op | None) -> None:
        if op is not None and op not in found:
            for operand in op.operands:
                visit(operand.producer)
            found[op] = None

    visit(value.producer)
    return list(found)


def sources(module: Module, name: str) -> tuple[str, ...]:
    """Stored parameters that `param @name` is made of."""
    func = module.funcs.get(f"pack/{name}")
    return (name,) if func is None else tuple(func.params())


def _run(ops: Sequence[Op], result: Value, read: Read) -> Array:
    values: dict[Value, Array] = {}
    last_use = {v: i for i, op in enumerate(ops) for v in op.operands}
    for i, op in enumerate(ops):
        if op.name == "param":
            name = str(op.attrs["name"])
            type_ = op.result.type
            assert isinstance(type_, TensorType)
            values[op.result] = _checked(name, type_, read(name))
        else:
            values[op.result] = _evaluate(op, [values[v] for v in op.operands])
        for value in op.operands:  # a layer's weights need not stay until the end
            if last_use[value] == i and value is not result:
                values.pop(value, None)
    return values[result]


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
