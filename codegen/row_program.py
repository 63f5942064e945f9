"""What a row kernel must do, before any code: which values of a body are stored, and in what order.

A row kernel runs a body of element-wise ops and row reductions once for each row. Everything that
is not stored is computed where it is read. No TVM here: `refusal` decides, `tvm_lower` lowers.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferc.codegen.decompose import decompose
from inferc.codegen.expressions import Unprintable, uniform_constant
from inferc.codegen.group import (
    canonical_body,
    has_rows,
    is_static,
    row_elements,
    row_shape,
    tensor,
    through_reshape,
)
from inferc.ir.core import Func, Op, Value
from inferc.ir.dims import Symbol
from inferc.ir.ops.elementwise import ELEMENTWISE
from inferc.ir.text import structural_text
from inferc.ir.types import TensorType

REDUCTIONS = frozenset({"core.sum", "core.mean", "core.amax"})
VIEWS = frozenset({"core.reshape", "core.slice", "core.transpose", "core.broadcast_to"})
JOINS = frozenset({"core.concat", "nn.rope"})
SOURCES = frozenset({"core.constant", "core.iota"})
LOWERED = ELEMENTWISE | REDUCTIONS | VIEWS | JOINS | SOURCES
_COSTLY = frozenset(
    f"core.{n}"
    for n in (
        "exp", "log", "tanh", "sigmoid", "erf", "silu", "softplus", "gelu", "cos", "sin", "pow",
        "div",
    )
)  # fmt: skip
# Rows kept between loops live on the stack of a worker.
LOCAL_BYTES = 1 << 17
_ANY_SIZE = 1 << 30


def row_body(body: Func) -> Func:
    """The body with canonical symbols and compound ops spelled out."""
    copied = decompose(canonical_body(body))
    for value in copied.args:
        assert isinstance(value.type, TensorType)
        for size in value.type.shape:
            for name in size.symbols() if not isinstance(size, int) else ():
                copied.symbols[name] = Symbol(name, 0, _ANY_SIZE)
    return copied


def row_text(body: Func) -> str:
    """Text of `row_body` without names: equal bodies are lowered once."""
    return structural_text(row_body(body)) + "\n"


def refusal(body: Func) -> str | None:
    """Why a body is no row kernel, or None."""
    if any(not isinstance(v.type, TensorType) for v in [*body.args, *body.results]):
        return "it holds a cache"
    expanded = row_body(body)
    for arg in expanded.args:
        if not has_rows(arg.type) and not is_static(arg.type):
            return f"%{arg.hint}: {arg.type} is symbolic behind its first axis"
    if len({str(tensor(v).shape[0]) for v in _row_values(expanded)}) != 1:
        return "its values have different numbers of rows"
    for op in expanded.ops:
        reason = _op_refusal(op)
        if reason is not None:
            return f"{op.name}: {reason}"
    for result in expanded.results:
        if not has_rows(result.type) or tensor(result).dtype not in ("f32", "i32"):
            return f"the result %{result.hint}: {result.type} has no float rows"
    kept = sum(4 * row_elements(tensor(v)) for v in stored(expanded) if v not in expanded.results)
    if kept > LOCAL_BYTES:
        return f"{kept} bytes a row would have to be kept, at most {LOCAL_BYTES} can"
    return None


def _row_values(body: Func) -> list[Value]:
    values = [*body.args, *(r for op in body.ops for r in op.results)]
    return [v for v in values if not is_static(v.type)]


def _op_refusal(op: Op) -> str | None:
    if op.name not in LOWERED:
        return "is not element-wise and no row reduction"
    result = tensor(op.results[0])
    if not has_rows(result) and not is_static(result):
        return f"the result {result} is symbolic behind its first axis"
    if op.name in REDUCTIONS:
        last = tensor(op.operands[0]).rank - 1
        if op.attrs["axes"] not in ((last,), (-1,)):
            return f"reduces axes {op.attrs['axes']}, only the last can be"
    if op.name == "core.constant":
        try:
            uniform_constant(op)
        except Unprintable as error:
            return str(error)
    return _axis_refusal(op) if has_rows(op.operands[0].type if op.operands else result) else None


def _axis_refusal(op: Op) -> str | None:
    """Views may not touch the row axis."""
    if op.name == "core.reshape" and row_elements(tensor(op.operands[0])) != row_elements(
        tensor(op.result)
    ):
        return "mixes rows"
    if op.name == "core.transpose" and op.attrs["perm"][0] != 0:  # type: ignore[index]
        return "moves the row axis"
    if op.name in ("core.slice", "core.concat") and op.attrs["axis"] == 0:
        return "cuts the row axis"
    return None


def stored(body: Func) -> list[Value]:
    """Values of an expanded body that are written to memory, in order of computation."""
    wanted = {through_reshape(r) for r in body.results}
    for op in body.ops:
        if op.name in REDUCTIONS or op.name in JOINS:
            wanted.add(op.result)
    uses = _loops_reading(body, wanted)
    for op in body.ops:
        if op.name in _COSTLY and uses.get(op.result, 0) > 1 and has_rows(op.result.type):
            wanted.add(op.result)
    return [r for op in body.ops for r in op.results if r in wanted]


def _loops_reading(body: Func, roots: set[Value]) -> dict[Value, int]:
    """In how many stored values' loops each value would be computed."""
    counts: dict[Value, int] = {}
    for root in roots:
        seen: set[Value] = set()
        stack = list(root.producer.operands) if root.producer else []
        while stack:
            value = stack.pop()
            if value in seen or value in roots:
                continue
            seen.add(value)
            if value.producer is not None:
                stack.extend(value.producer.operands)
        for value in seen:
            counts[value] = counts.get(value, 0) + 1
    return counts


@dataclass(frozen=True)
class RowArgument:
    """One pointer of the lowered function: element type, elements a row (0: the same for all)."""

    index: int
    type: str
    stride: int


def row_arguments(body: Func, results_from: int) -> tuple[RowArgument, ...]:
    """Pointers of the lowered function: the arguments, then the results."""
    values = [(a, a.index) for a in body.args]
    values += [(r, results_from + i) for i, r in enumerate(body.results)]
    return tuple(
        RowArgument(
            index,
            {"i32": "const int32_t", "i64": "const int64_t"}.get(tensor(v).dtype, "const float")
            if i < len(body.args)
            else ("int32_t" if tensor(v).dtype == "i32" else "float"),
            row_elements(tensor(v)) if has_rows(v.type) else 0,
        )
        for i, (v, index) in enumerate(values)
    )


__all__ = ["refusal", "row_arguments", "row_body", "row_shape", "row_text", "stored"]
