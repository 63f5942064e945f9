"""Caches and states are used linearly: a version is written once, only the newest one is read.

%kv_0 ── append ──> %kv ── append ──> %kv_1 ── return
         reads of %kv_0 end here │    reads of %kv end here
"""

from __future__ import annotations

from collections.abc import Iterator

from inferc.ir.core import Func, Op, Value
from inferc.ir.types import Memory

Found = tuple[str, str, Op | None]  # rule, message, op


def writes(op: Op, index: int) -> bool:
    """Whether operand `index` of `op` is a cache or state that the op makes a new version of."""
    if not isinstance(op.operands[index].type, Memory):
        return False
    if op.body is None:
        return op.card.stateful
    inner = op.body.args[index]
    return any(writes(use.op, use.index) for use in inner.uses)


def cache_problems(func: Func, *, returned: bool = True) -> Iterator[Found]:
    """Broken rules of linear use in a function (and in the bodies of its groups)."""
    newest = {arg: arg for arg in func.args if isinstance(arg.type, Memory)}
    written: dict[Value, Op] = {}
    for op in func.ops:
        for i, value in enumerate(op.operands):
            if isinstance(value.type, Memory) and value in written:
                message = f"%{value.hint} was replaced by {written[value].name} above"
                yield "cache-linear", message, op
            elif writes(op, i):
                written[value] = op
        for result in op.results:
            if isinstance(result.type, Memory):
                yield from _follow(op, result, newest)
        if op.body is not None:
            for rule, message, _ in cache_problems(op.body, returned=False):
                yield rule, f"in the body: {message}", op
    yield from _result_problems(func, newest, written, returned)


def _follow(op: Op, result: Value, newest: dict[Value, Value]) -> Iterator[Found]:
    """Note which argument `result` is a version of."""
    of = [v for i, v in enumerate(op.operands) if writes(op, i) and v.type == result.type]
    index = [r for r in op.results if r.type == result.type].index(result)
    if index >= len(of):
        yield "cache-linear", f"%{result.hint} is a cache that comes from no operand", op
        return
    for arg, last in newest.items():
        if last is of[index]:
            newest[arg] = result


def _result_problems(
    func: Func, newest: dict[Value, Value], written: dict[Value, Op], returned: bool
) -> Iterator[Found]:
    for value in func.results:
        if value in written:
            message = f"returns %{value.hint}, which {written[value].name} has replaced"
            yield "cache-returned", message, written[value]
    if not returned:
        return
    found = [v for v in func.results if isinstance(v.type, Memory)]
    expected = list(newest.values())
    if found != expected:
        message = (
            f"must return the newest version of its caches, in order: expected "
            f"{_names(expected)}, found {_names(found)}"
        )
        yield "cache-returned", message, None


def _names(values: list[Value]) -> str:
    return ", ".join(f"%{v.hint}" for v in values) or "none"
