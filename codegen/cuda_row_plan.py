"""What a loop over a row on CUDA writes to memory, and what it can do four elements at a time."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable

from inferc.codegen.cuda_row_elements import c_type, shape_of
from inferc.codegen.expressions import Unprintable
from inferc.codegen.group import has_rows, int_attr, tensor, through_reshape
from inferc.codegen.row_program import stored
from inferc.ir.core import Func, Value
from inferc.ir.ops.elementwise import ELEMENTWISE

SELECTIONS = frozenset({"core.topk", "core.put_along"})


def check_rows(body: Func) -> None:
    """Raises Unprintable for a body that is not about rows of one kind."""
    for op in body.ops:
        if len(op.results) != 1 and op.name not in SELECTIONS:
            raise Unprintable(f"{op.name} has {len(op.results)} results")
    values = [*body.args, *(r for op in body.ops for r in op.results)]
    rows = {str(tensor(v).shape[0]) for v in values if has_rows(v.type)}
    if len(rows) != 1:
        raise Unprintable(f"its values have rows of different numbers: {', '.join(sorted(rows))}")


def stored_values(body: Func) -> list[Value]:
    """Values that are written to memory."""
    wanted = set(stored(body))
    for op in body.ops:
        if op.name in SELECTIONS:
            wanted.update(op.results)
        if op.name == "core.topk":
            source = through_reshape(op.operands[0])
            if source.producer is not None:
                wanted.add(source)
    return [r for op in body.ops for r in op.results if r in wanted]


def in_fours(stored: Container[Value], roots: Iterable[Value]) -> bool:
    """Whether a thread can take four neighbouring elements, from a multiple of four on, at once.

    They must be computed of elements that lie so as well, or of single ones that all four share.
    """
    stack = list(roots)
    while stack:
        value = stack.pop()
        op = value.producer
        if math.prod(shape_of(value)) == 1:
            continue
        if shape_of(value)[-1] % 4 and shape_of(value)[-1] != 1:
            return False
        if op is None or value in stored:
            if shape_of(value)[-1] != 1 and c_type(value) != "float":
                return False
            continue
        if not keeps_fours(value):
            return False
        stack.extend(op.operands)
    return True


def keeps_fours(value: Value) -> bool:
    """The same of one op."""
    op = value.producer
    if op is None or op.name in ELEMENTWISE or op.name in ("core.constant", "core.broadcast_to"):
        return True
    if op.name == "core.slice":
        whole = int_attr(op, "axis") % tensor(value).rank != tensor(value).rank - 1
        return whole or (int_attr(op, "start") % 4 == 0 and int_attr(op, "step") == 1)
    return op.name == "core.reshape" and all(
        shape_of(v)[-1:] != () and shape_of(v)[-1] % 4 == 0 for v in (value, op.operands[0])
    )
