"""Values made of parts: concatenations and rotations, each part a loop of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inferc.codegen.cuda_row_elements import Elements, Index, row_axis, shape_of
from inferc.codegen.expressions import Unprintable
from inferc.codegen.group import int_attr
from inferc.ir.core import Op, Value


@dataclass(frozen=True)
class Part:
    """A part of a joined value: its own shape, its place in the result, its elements.

    `fours`: four elements of `sources` that lie together give four that do.
    """

    shape: tuple[int, ...]
    place: Callable[[Elements, Index], Index]
    value: Callable[[Elements, Index], str]
    sources: tuple[Value, ...]
    fours: bool


def parts(op: Op) -> list[Part]:
    """The parts of a concatenation or a rotation. Raises Unprintable."""
    return _concatenated(op) if op.name == "core.concat" else _rotated(op)


def _shifted(elements: Elements, index: Index, axis: int, offset: int) -> Index:
    if offset == 0:
        return index
    moved = elements.name("int", f"{offset} + {index[axis]}")
    return (*index[:axis], moved, *index[axis + 1 :])


def _concatenated(op: Op) -> list[Part]:
    axis, made, offset = row_axis(op, int_attr(op, "axis"), op.result), [], 0
    for operand in op.operands:
        made.append(_slab(operand, axis, offset))
        offset += shape_of(operand)[axis]
    return made


def _slab(operand: Value, axis: int, offset: int) -> Part:
    return Part(
        shape_of(operand),
        lambda elements, index: _shifted(elements, index, axis, offset),
        lambda elements, index: elements.read(operand, index),
        (operand,),
        offset % 4 == 0 or axis != len(shape_of(operand)) - 1,
    )


def _rotated(op: Op) -> list[Part]:
    x, cos, _ = op.operands
    half, (*lead, size) = shape_of(cos)[-1], shape_of(x)
    made = [_turned(op, (*lead, half), second=second) for second in (False, True)]
    if size > 2 * half:
        rest = 2 * half
        made.append(
            Part(
                (*lead, size - rest),
                lambda elements, index: _shifted(elements, index, len(lead), rest),
                lambda elements, index: elements.read(
                    x, _shifted(elements, index, len(lead), rest)
                ),
                (x,),
                rest % 4 == 0,
            )
        )
    return made


def _turned(op: Op, shape: Sequence[int], *, second: bool) -> Part:
    """The first or the second members of all rotated pairs."""
    x, cos, sin = op.operands
    half, halves = shape[-1], op.attrs["pairing"] == "half"

    def member(elements: Elements, index: Index, is_second: bool) -> Index:
        if halves:
            return _shifted(elements, index, len(index) - 1, half if is_second else 0)
        at = elements.name("int", f"2 * {index[-1]} + {int(is_second)}")
        return (*index[:-1], at)

    def value(elements: Elements, index: Index) -> str:
        a, b = (elements.read(x, member(elements, index, s)) for s in (False, True))
        c, s = (elements.read(v, _table_index(v, index)) for v in (cos, sin))
        text = f"{b} * {c} + {a} * {s}" if second else f"{a} * {c} - {b} * {s}"
        return elements.name("float", text)

    return Part(
        tuple(shape), lambda elements, index: member(elements, index, second), value,
        (x, cos, sin), halves and half % 4 == 0,
    )  # fmt: skip


def _table_index(table: Value, index: Index) -> Index:
    """Rows of tables have no axis of heads."""
    outer = index[:-2]
    shape = shape_of(table)
    if len(shape) != len(outer) + 1:
        raise Unprintable(f"nn.rope with tables {table.type}")
    return tuple(
        "0" if size == 1 else i for size, i in zip(shape, (*outer, index[-1]), strict=True)
    )
