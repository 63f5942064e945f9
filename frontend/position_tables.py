"""Small tables that only positions are combined with: frequencies of rotary embedding.

No file says which of its vectors is a frequency and which a weight; what reads it does. A small
vector that is only combined with numbers computed from positions becomes a constant of the graph,
as it is in a captured one, and the rotary table can be built from it.
"""

from __future__ import annotations

from collections.abc import Mapping

from inferc.frontend.weights import StoredTensor
from inferc.ir.core import Builder, Func, Op, Value
from inferc.ir.types import TensorType

_TABLE_ELEMENTS_MAX = 4096
_VIEWS = ("core.reshape", "core.transpose", "core.cast", "core.broadcast_to", "core.slice")


def with_constant_tables(func: Func, tensors: Mapping[str, StoredTensor]) -> Func:
    """The function with such tables as constants."""
    computed = _of_positions(func)
    chosen = {
        name
        for name, op in func.params().items()
        if _is_vector(op.result) and _read_only_by(op, computed)
    }
    return _rebuilt(func, chosen, tensors)


def context_of_tables(func: Func) -> int | None:
    """The longest sequence that tables looked up by position allow; None without such tables."""
    computed = _of_positions(func)
    rows = [
        op.operands[0].type.shape[0]  # type: ignore[union-attr]
        for op in func.ops
        if op.name == "core.embedding" and op.operands[1] in computed
    ]
    rows += [
        op.operands[0].type.shape[int(op.attrs["axis"])]  # type: ignore[union-attr, arg-type]
        for op in func.ops
        if op.name == "core.slice" and not isinstance(op.attrs["stop"], int)
    ]
    return min((r for r in rows if isinstance(r, int)), default=None)


def _of_positions(func: Func) -> set[Value]:
    """Values computed from positions, counts and constants, and from nothing of the tokens."""
    found = {func.args[1]}
    neutral: set[Value] = set()  # constants and small vectors: of positions if the rest is
    for op in func.ops:
        if op.name == "core.iota":
            found.add(op.result)
        elif op.name == "core.constant" or (op.name == "param" and _is_vector(op.result)):
            neutral.add(op.result)
        elif op.operands and all(v in neutral for v in op.operands):
            neutral.update(op.results)
        elif op.operands and all(v in neutral or v in found for v in op.operands):
            found.update(op.results)
    return found


def _is_vector(value: Value) -> bool:
    type_ = value.type
    assert isinstance(type_, TensorType)
    sizes = [s for s in type_.shape if s != 1]
    return len(sizes) <= 1 and all(isinstance(s, int) and s <= _TABLE_ELEMENTS_MAX for s in sizes)


def _read_only_by(op: Op, computed: set[Value]) -> bool:
    """Whether all readers, seen through views, compute something of positions."""
    if not op.result.users:
        return False
    for user in op.result.users:
        if user.name in _VIEWS and user.operands[0] is op.result:
            if not _read_only_by(user, computed):
                return False
        elif not all(r in computed for r in user.results):
            return False
    return True


def _rebuilt(func: Func, chosen: set[str], tensors: Mapping[str, StoredTensor]) -> Func:
    if not chosen:
        return func
    new = Func(func.name, dict(func.symbols))
    builder, values = Builder(new), dict[Value, Value]()
    for arg in func.args:
        values[arg] = new.add_arg(arg.hint, arg.type)
    for op in func.ops:
        name = op.attrs.get("name")
        if op.name == "param":
            type_ = op.result.type
            assert isinstance(type_, TensorType)
            if name in chosen:
                numbers = tuple(tensors[str(name)].read_float32().ravel().tolist())
                made = builder.op(
                    "core.constant", loc=op.loc, hint=op.result.hint, values=numbers,
                    shape=type_.shape, dtype="f32",
                )  # fmt: skip
            else:
                made = builder.param(str(name), type_, loc=op.loc)
                made.hint = op.result.hint
            values[op.result] = made
            continue
        again = builder.ops(
            op.name, *(values[v] for v in op.operands), loc=op.loc,
            hints=[r.hint for r in op.results], **op.attrs,
        )  # fmt: skip
        values.update(zip(op.results, again.results, strict=True))
    return builder.returns(*(values[r] for r in func.results))
