"""Copy a function with other sizes or types: what the in-place rewriter cannot change."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from inferc.ir.card import AttrValue
from inferc.ir.core import Func, Module, Op, Value
from inferc.ir.dims import Dim, Size, Symbol, substitute
from inferc.ir.types import Type, substitute_type

STEP_FUNCS = ("forward", "prefill", "decode")


def step_funcs(module: Module) -> list[Func]:
    """The functions that run a step, as opposed to those that pack weights."""
    return [f for f in module if f.name in STEP_FUNCS]


def rebuild(
    func: Func,
    name: str,
    symbols: Mapping[str, Symbol],
    *,
    sizes: Mapping[str, Size] | None = None,
    retype: Callable[[Type], Type] = lambda type_: type_,
) -> Func:
    """A copy of `func` whose argument types went through `sizes` (symbol to size) and `retype`.

    Types of results are inferred again; attributes that hold sizes are substituted.
    """
    copied, values = Func(name, dict(symbols)), dict[Value, Value]()
    replaced = dict(sizes or {})
    for arg in func.args:
        values[arg] = copied.add_arg(arg.hint, retype(substitute_type(arg.type, replaced)))
    for op in func.ops:
        new = _copy(op, [values[v] for v in op.operands], symbols, replaced, retype)
        copied.ops.append(new)
        values.update(zip(op.results, new.results, strict=True))
    copied.results = [values[r] for r in func.results]
    return copied


def _copy(
    op: Op,
    operands: list[Value],
    symbols: Mapping[str, Symbol],
    sizes: Mapping[str, Size],
    retype: Callable[[Type], Type],
) -> Op:
    attrs = {k: substitute_attr(v, sizes) for k, v in op.attrs.items()}
    hints = [r.hint for r in op.results]
    if op.body is not None:
        body = rebuild(op.body, op.body.name, symbols, sizes=sizes, retype=retype)
        types = [r.type for r in body.results]
        return Op(op.card, operands, attrs, loc=op.loc, hints=hints, body=body, result_types=types)
    given = [op.result.type] if op.name == "param" else None
    return Op(op.card, operands, attrs, loc=op.loc, hints=hints, result_types=given)


def substitute_attr(value: AttrValue, sizes: Mapping[str, Size]) -> AttrValue:
    """Replace symbols in an attribute value."""
    if isinstance(value, Dim):
        return substitute(value, sizes)
    if isinstance(value, tuple):
        return tuple(substitute_attr(v, sizes) for v in value)
    return value
