"""Checks of a module: structure, types, linear caches, stage legality, provenance.

A broken rule is a bug of the pass or frontend that made the op, so the message says which pass
touched the op last and shows it among its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from inferc.ir.card import TypeMismatch
from inferc.ir.core import Func, Module, Op, Value
from inferc.ir.dims import Dim
from inferc.ir.location import ModuleLoc
from inferc.ir.problem import Problem, VerifyError
from inferc.ir.stages import stage_problems
from inferc.ir.types import TensorType, Type
from inferc.ir.verify_state import cache_problems


def verify(
    module: Module, *, stage: str | None = None, roots: Iterable[str] | None = None, hint: str = ""
) -> None:
    """Check everything that can be checked.

    Args:
        module: the module.
        stage: a name of `inferc.ir.stages.STAGES`, to check that only its ops occur.
        roots: paths of source modules that must be found in a location or in `eliminated`.
        hint: what to do next; ends the message.

    Raises:
        VerifyError: with all problems; the first one in full.
    """
    problems = list(structure_problems(module))
    if not problems:  # the other rules walk the graph and rely on its structure
        for func in module:
            problems += type_problems(func)
            problems += [Problem(r, m, func, op) for r, m, op in cache_problems(func)]
        problems += param_type_problems(module)
        if stage is not None:
            problems += stage_problems(module, stage)
        if roots is not None:
            problems += provenance_problems(module, roots)
    if problems:
        raise VerifyError(problems, hint)


# -- structure
def structure_problems(module: Module) -> Iterator[Problem]:
    """Names, definitions, order, use lists, bodies."""
    for name, func in module.funcs.items():
        if name != func.name:
            yield Problem("function-name", f"@{func.name} is stored as @{name}", func)
        yield from _func_structure(func)
        seen: set[str] = set()
        for op in func.ops:
            if op.name == "param":
                param = str(op.attrs["name"])
                if param in seen:
                    yield Problem("param-unique", f"param @{param} is read by two ops", func, op)
                seen.add(param)


def _func_structure(func: Func, outer: Op | None = None) -> Iterator[Problem]:
    defined: set[Value] = set(func.args)
    everything = {r for op in func.ops for r in op.results}
    seen: set[Op] = set()
    for op in func.ops:
        if op in seen:
            yield Problem("single-definition", f"{op.name} stands twice in the list", func, op)
            continue
        seen.add(op)
        for i, value in enumerate(op.operands):
            if value in defined:
                continue
            if value in everything:
                message = f"operand {i} (%{value.hint}) is defined below its use"
                yield Problem("order", message, func, op)
            else:
                message = f"operand {i} (%{value.hint}) belongs to no op of this function"
                yield Problem("foreign-value", message, func, op)
        if any(r.producer is not op for r in op.results):
            yield Problem(
                "single-definition", "a result names another op as its producer", func, op
            )
        defined.update(op.results)
        yield from _body_structure(func, op, nested=outer is not None)
    for value in func.results:
        if value not in defined:
            message = f"result %{value.hint} belongs to no op of this function"
            yield Problem("foreign-value", message, func)
    yield from _use_problems(func)


def _use_problems(func: Func) -> Iterator[Problem]:
    readers: dict[Value, set[tuple[Op, int]]] = {a: set() for a in func.args}
    readers |= {r: set() for op in func.ops for r in op.results}
    for op in func.ops:
        for i, value in enumerate(op.operands):
            readers.setdefault(value, set()).add((op, i))
    for value, expected in readers.items():
        found = {(use.op, use.index) for use in value.uses}
        if found != expected:
            message = f"%{value.hint} lists {len(found)} uses, {len(expected)} ops read it"
            yield Problem("use-list", message, func, value.producer)


def _body_structure(func: Func, op: Op, *, nested: bool) -> Iterator[Problem]:
    if (op.body is not None) != (op.name == "fuse.group"):
        yield Problem("body", f"{op.name}: exactly fuse.group has a body", func, op)
    if op.body is None:
        return
    if nested:
        yield Problem("body-nested", "a group may not hold another group", func, op)
        return
    if len(op.body.args) != len(op.operands):
        message = f"the body takes {len(op.body.args)} values, the group {len(op.operands)}"
        yield Problem("body", message, func, op)
    for inner in op.body.ops:
        if inner.name == "param":
            message = f"param @{inner.attrs['name']} must be an operand of the group"
            yield Problem("body-param", message, func, op)
    for problem in _func_structure(op.body, op):
        rule = "body-closed" if problem.rule == "foreign-value" else problem.rule
        yield Problem(rule, f"in the body: {problem.message}", func, op)


# -- types
def type_problems(func: Func) -> Iterator[Problem]:
    """Re-infer every op and compare; symbols must be declared."""
    for value in func.args:
        yield from _undeclared(func, value, None)
    for op in func.ops:
        for value in op.results:
            yield from _undeclared(func, value, op)
        if op.body is not None:
            yield from _body_types(func, op)
        elif op.name != "param":
            yield from _inferred_types(func, op)


def _inferred_types(func: Func, op: Op) -> Iterator[Problem]:
    try:
        attrs = op.card.check_attrs(op.attrs)
        inferred = op.card.infer([v.type for v in op.operands], attrs)
    except TypeMismatch as error:
        yield Problem("types", str(error), func, op)
        return
    if list(inferred) != [r.type for r in op.results]:
        yield Problem("types", f"expected {_types(inferred)} from the card of {op.name}, "
                      f"found {_types(r.type for r in op.results)}", func, op)  # fmt: skip


def _body_types(func: Func, op: Op) -> Iterator[Problem]:
    assert op.body is not None
    outside = [v.type for v in op.operands] + [r.type for r in op.results]
    inside = [a.type for a in op.body.args] + [r.type for r in op.body.results]
    if outside != inside:
        message = f"the group has {_types(outside)}, its body {_types(inside)}"
        yield Problem("body-types", message, func, op)
    body = Func(op.body.name, func.symbols, op.body.args, op.body.ops, op.body.results)
    for problem in type_problems(body):
        yield Problem(problem.rule, f"in the body: {problem.message}", func, op)


def _undeclared(func: Func, value: Value, op: Op | None) -> Iterator[Problem]:
    if not isinstance(value.type, TensorType):
        return
    names = {n for s in value.type.shape if isinstance(s, Dim) for n in s.symbols()}
    for name in sorted(names - set(func.symbols)):
        message = f"%{value.hint}: {value.type} has {name}, declared: {', '.join(func.symbols)}"
        yield Problem("symbol-declared", message, func, op)


def param_type_problems(module: Module) -> Iterator[Problem]:
    """One parameter has one type in all functions."""
    types: dict[str, tuple[Type, str]] = {}
    for func in module:
        for name, op in func.params().items():
            type_, where = types.setdefault(name, (op.result.type, func.name))
            if type_ != op.result.type:
                message = f"param @{name} is {type_} in @{where}, {op.result.type} here"
                yield Problem("param-type", message, func, op)


def _types(types: Iterable[Type]) -> str:
    return f"({', '.join(map(str, types))})"


# -- provenance
def provenance(module: Module) -> dict[str, None]:
    """Paths of the source modules that some op stands for, in order."""
    return dict.fromkeys(
        root.path for func in module for op in func.ops for root in _roots_of(op)
    )  # fmt: skip


def _roots_of(op: Op) -> Iterator[ModuleLoc]:
    yield from op.loc.roots()
    for inner in op.body.ops if op.body is not None else ():
        yield from inner.loc.roots()


def provenance_problems(module: Module, roots: Iterable[str]) -> Iterator[Problem]:
    """Every root is in some location, or logged as eliminated."""
    kept = provenance(module).keys() | {e.path for e in module.eliminated}
    for func in list(module)[:1]:
        for path in roots:
            if path not in kept:
                message = (
                    f"source module {path!r} is in no location and not logged as eliminated; "
                    "erase ops through the Rewriter, or log it with Rewriter.eliminated"
                )
                yield Problem("provenance", message, func)
