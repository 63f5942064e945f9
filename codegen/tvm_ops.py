"""One element of a value as a TIR expression of elements of its operands. Child process only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.sym import Analyzer

from inferc.codegen import tvm_math
from inferc.codegen.expressions import uniform_constant
from inferc.codegen.group import has_rows, int_attr, row_shape, tensor
from inferc.ir.core import Op, Value

Expr = Any  # a tirx expression; the package has no type stubs
Index = tuple[Expr, ...]
Read = Callable[[Value, Index], Expr]
Bind = Callable[[Expr], Expr]

_UNARY: dict[str, Callable[[Expr, Bind], Expr]] = {
    "core.neg": lambda x, bind: -x,
    "core.abs": lambda x, bind: tirx.max(x, -x),
    "core.exp": tvm_math.exp,
    "core.log": lambda x, bind: tirx.log(x),
    "core.sqrt": lambda x, bind: tirx.sqrt(x),
    "core.rsqrt": lambda x, bind: tvm_math.const(1.0) / tirx.sqrt(x),
    "core.reciprocal": lambda x, bind: tvm_math.const(1.0) / x,
    "core.tanh": tvm_math.tanh,
    "core.sigmoid": tvm_math.sigmoid,
    "core.cos": lambda x, bind: tirx.cos(x),
    "core.sin": lambda x, bind: tirx.sin(x),
    "core.erf": tvm_math.erf,
    "core.relu": lambda x, bind: tirx.max(x, tvm_math.const(0.0)),
    "core.silu": lambda x, bind: x * tvm_math.sigmoid(x, bind),
    "core.softplus": tvm_math.softplus,
    "core.square": lambda x, bind: x * x,
    "core.floor": lambda x, bind: tirx.floor(x),
    "core.logical_not": lambda x, bind: tirx.Not(x),
}
_BINARY: dict[str, Callable[[Expr, Expr], Expr]] = {
    "core.add": lambda a, b: a + b,
    "core.sub": lambda a, b: a - b,
    "core.mul": lambda a, b: a * b,
    "core.div": lambda a, b: a / b if "float" in str(a.ty.dtype) else tirx.floordiv(a, b),
    "core.pow": lambda a, b: tirx.pow(a, b),
    "core.maximum": lambda a, b: tirx.max(a, b),
    "core.minimum": lambda a, b: tirx.min(a, b),
    "core.logical_and": tirx.And,
    "core.logical_or": tirx.Or,
    "core.lt": lambda a, b: a < b,
    "core.le": lambda a, b: a <= b,
    "core.gt": lambda a, b: a > b,
    "core.ge": lambda a, b: a >= b,
    "core.eq": lambda a, b: tirx.EQ(a, b),
    "core.ne": lambda a, b: tirx.NE(a, b),
}
_TIR_TYPES = {"f32": "float32", "i32": "int32", "i64": "int64", "bool": "bool"}
_ANALYZER = Analyzer()


def element(value: Value, index: Index, read: Read, bind: Bind) -> Expr:
    """The element at an index into the row of a value, from elements of the producer's operands."""
    op = value.producer
    assert op is not None
    if op.name in _VIEWS:
        source = op.operands[0]
        return read(source, _VIEWS[op.name](op, index))
    if op.name == "core.constant":
        return _constant(op)
    if op.name == "core.iota":
        return index[0].astype(_TIR_TYPES[str(op.attrs["dtype"])])
    operands = [read(v, _broadcast(v, value, index)) for v in op.operands]
    if op.name in _UNARY:
        return _UNARY[op.name](bind(operands[0]), bind)
    if op.name == "core.gelu":
        return tvm_math.gelu(bind(operands[0]), str(op.attrs["approximate"]), bind)
    if op.name in _BINARY:
        return _BINARY[op.name](*operands)
    if op.name == "core.where":
        return tirx.Select(*operands)
    if op.name == "core.cast":
        wanted = _TIR_TYPES[str(op.attrs["dtype"])]
        return operands[0] if str(operands[0].ty.dtype) == wanted else operands[0].astype(wanted)
    raise NotImplementedError(op.name)  # row_program.refusal lets none of these through


def _constant(op: Op) -> Expr:
    dtype, value = _TIR_TYPES[str(op.attrs["dtype"])], uniform_constant(op)
    if dtype == "float32":
        return tvm_math.const(value)
    return tirx.IntImm(dtype, int(value))


def _broadcast(operand: Value, result: Value, index: Index) -> Index:
    """Index into an operand of an element-wise op: axes align from the right, ones repeat."""
    wanted = tensor(operand)
    shape = row_shape(wanted)
    if has_rows(wanted) and len(shape) != len(row_shape(tensor(result))):
        raise NotImplementedError(f"{wanted} broadcast to {result.type}")
    used = index[len(index) - len(shape) :] if shape else ()
    zero = tirx.IntImm("int64", 0)
    return tuple(zero if s == 1 else i for s, i in zip(shape, used, strict=True))


# -- views: index into the operand from an index into the result
def _reshape(op: Op, index: Index) -> Index:
    flat: Expr = tirx.IntImm("int64", 0)
    for size, i in zip(row_shape(tensor(op.result)), index, strict=True):
        flat = flat * size + i
    out: list[Expr] = []
    for size in reversed(row_shape(tensor(op.operands[0]))):
        out.append(_ANALYZER.simplify(tirx.floormod(flat, size)))
        flat = tirx.floordiv(flat, size)
    if out:  # the outermost axis needs no remainder
        out[-1] = _ANALYZER.simplify(_outermost(op, index))
    return tuple(reversed(out))


def _outermost(op: Op, index: Index) -> Expr:
    flat: Expr = tirx.IntImm("int64", 0)
    for size, i in zip(row_shape(tensor(op.result)), index, strict=True):
        flat = flat * size + i
    inner = 1
    for size in row_shape(tensor(op.operands[0]))[1:]:
        inner *= size
    return tirx.floordiv(flat, inner)


def _slice(op: Op, index: Index) -> Index:
    axis = _row_axis(op, tensor(op.operands[0]).rank)
    moved = index[axis] * int_attr(op, "step") + int_attr(op, "start")
    return (*index[:axis], moved, *index[axis + 1 :])


def _transpose(op: Op, index: Index) -> Index:
    perm = [int(p) for p in op.attrs["perm"]]  # type: ignore[union-attr,arg-type]
    if has_rows(op.result.type):
        perm = [p - 1 for p in perm[1:]]
    out = [index[0]] * len(perm)
    for at, source in enumerate(perm):
        out[source] = index[at]
    return tuple(out)


def _row_axis(op: Op, rank: int) -> int:
    axis = int_attr(op, "axis") % rank
    return axis - 1 if has_rows(op.results[0].type) else axis


_VIEWS: dict[str, Callable[[Op, Index], Index]] = {
    "core.reshape": _reshape,
    "core.slice": _slice,
    "core.transpose": _transpose,
    "core.broadcast_to": lambda op, index: _broadcast(op.operands[0], op.result, index),
}


# -- joins: values made of parts
@dataclass(frozen=True)
class Part:
    """A part of a joined value: its own shape, its place in the result, its elements."""

    shape: tuple[int, ...]
    place: Callable[[Index], Index]
    value: Callable[[Index, Read], Expr]
    contiguous: bool = True


def parts(op: Op) -> list[Part]:
    """The parts of a concatenation or a rotation."""
    return _concat_parts(op) if op.name == "core.concat" else _rope_parts(op)


def _concat_parts(op: Op) -> list[Part]:
    axis = _row_axis(op, tensor(op.operands[0]).rank)
    made, offset = [], 0
    for operand in op.operands:
        made.append(_slab(operand, axis, offset))
        offset += row_shape(tensor(operand))[axis]
    return made


def _slab(operand: Value, axis: int, offset: int) -> Part:
    """An operand of a concatenation."""

    def place(index: Index) -> Index:
        return (*index[:axis], index[axis] + offset, *index[axis + 1 :])

    return Part(row_shape(tensor(operand)), place, lambda index, read: read(operand, index))


def _rope_parts(op: Op) -> list[Part]:
    x, cos, _ = op.operands
    half, (*lead, size) = row_shape(tensor(cos))[-1], row_shape(tensor(x))
    made = [_turned(op, (*lead, half), second) for second in (False, True)]
    if size > 2 * half:
        made.append(_unturned(x, (*lead, size - 2 * half), 2 * half))
    return made


def _turned(op: Op, shape: tuple[int, ...], second: bool) -> Part:
    """The first or the second members of all rotated pairs."""
    x, cos, sin = op.operands
    halves, half = op.attrs["pairing"] == "half", shape[-1]

    def member(i: Expr, is_second: bool) -> Expr:
        return i + (half if is_second else 0) if halves else i * 2 + int(is_second)

    def place(index: Index) -> Index:
        return (*index[:-1], member(index[-1], second))

    def value(index: Index, read: Read) -> Expr:
        *outer, i = index
        a, b = (read(x, (*outer, member(i, s))) for s in (False, True))
        c, s = (read(table, (*outer[:-1], i)) for table in (cos, sin))
        return b * c + a * s if second else a * c - b * s

    return Part(shape, place, value, contiguous=halves)


def _unturned(x: Value, shape: tuple[int, ...], offset: int) -> Part:
    """Dims behind the rotated ones."""

    def place(index: Index) -> Index:
        return (*index[:-1], index[-1] + offset)

    return Part(shape, place, lambda index, read: read(x, place(index)))
