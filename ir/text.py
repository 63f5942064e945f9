"""Text form: one grammar for all ops; `parse(print(m))` equals `m`, and printing is canonical."""

from __future__ import annotations

import hashlib
import math

from inferc.ir.card import AttrValue
from inferc.ir.core import Func, Module, Op, Value
from inferc.ir.dims import Dim
from inferc.ir.location import DerivedLoc, FusedLoc, Location, ModuleLoc


def format_attr(value: AttrValue) -> str:
    """One attribute value as text."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if math.isinf(value) or math.isnan(value):
            return {True: "inf", False: "-inf"}[value > 0] if value == value else "nan"
        return repr(value)
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, tuple):
        inner = ", ".join(format_attr(v) for v in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return str(value)


def format_loc(loc: Location) -> str:
    """A location as text, without the enclosing `loc(...)`."""
    if isinstance(loc, ModuleLoc | FusedLoc):
        return str(loc)
    assert isinstance(loc, DerivedLoc)
    return f"{loc.pass_name}({format_loc(loc.of)})"


class _Ids(dict[Value, str]):
    """Names of values; a value that the function does not define prints as `%?hint`."""

    def __missing__(self, value: Value) -> str:
        return f"?{value.hint}"


class _Printer:
    def __init__(self, *, locations: bool, names: bool) -> None:
        self.locations, self.names = locations, names

    def func(self, func: Func, indent: str = "") -> list[str]:
        ids = self._name_values(func)
        args = ", ".join(f"%{ids[a]}: {a.type}" for a in func.args)
        results = ", ".join(str(r.type) for r in func.results)
        ranges = ", ".join(str(s) for s in func.symbols.values())
        where = f" where {ranges}" if ranges else ""
        name = func.name if self.names else "f"
        lines = [f"{indent}func @{name}({args}) -> ({results}){where} {{"]
        lines += self._body(func, ids, indent + "  ", "return")
        return [*lines, indent + "}"]

    def _name_values(self, func: Func) -> dict[Value, str]:
        ids = _Ids()
        taken: set[str] = set()
        counters: dict[str, int] = {}
        for value in [*func.args, *(r for op in func.ops for r in op.results)]:
            if not self.names:
                ids[value] = str(len(ids))
                continue
            base, name = value.hint, value.hint
            while name in taken:
                counters[base] = counters.get(base, 0) + 1
                name = f"{base}_{counters[base]}"
            taken.add(name)
            ids[value] = name
        return ids

    def _body(self, func: Func, ids: dict[Value, str], indent: str, end: str) -> list[str]:
        lines: list[str] = []
        for op in func.ops:
            lines += self._op(op, ids, indent)
        values = ", ".join(f"%{ids[r]}" for r in func.results)
        return [*lines, f"{indent}{end} {values}".rstrip()]

    def _op(self, op: Op, ids: dict[Value, str], indent: str) -> list[str]:
        left = ", ".join(f"%{ids[r]}" for r in op.results)
        types = ", ".join(str(r.type) for r in op.results)
        tail = f" loc({format_loc(op.loc)})" if self.locations else ""
        if op.name == "param":
            name = str(op.attrs["name"]) if self.names else "w"
            return [f"{indent}{left} = param @{name} : {types}{tail}"]
        shown = {a.name: op.attrs[a.name] for a in op.card.attrs if op.attrs[a.name] != a.default}
        attrs = ", ".join(f"{k} = {format_attr(v)}" for k, v in shown.items())
        attrs = f" {{{attrs}}}" if attrs else ""
        if op.body is None:
            operands = ", ".join(f"%{ids[v]}" for v in op.operands)
            return [f"{indent}{left} = {op.name}({operands}){attrs} : {types}{tail}"]
        inner = self._name_values(op.body)
        pairs = zip(op.body.args, op.operands, strict=False)  # the verifier prints broken groups
        operands = ", ".join(f"%{inner[a]} = %{ids[v]}" for a, v in pairs)
        head = f"{indent}{left} = {op.name}({operands}){attrs} : {types} {{"
        body = self._body(op.body, inner, indent + "  ", "yield")
        return [head, *body, indent + "}" + tail]


def print_func(func: Func, *, locations: bool = False) -> str:
    """A function as text."""
    return "\n".join(_Printer(locations=locations, names=True).func(func)) + "\n"


def print_ops(func: Func, *, around: Op, count: int) -> list[str]:
    """Lines of an op, marked, and of up to `count` ops before and after it."""
    printer, at = _Printer(locations=False, names=True), func.ops.index(around)
    ids, lines = printer._name_values(func), list[str]()
    for op in func.ops[max(0, at - count) : at + count + 1]:
        mark = "> " if op is around else "  "
        lines += [mark + line for line in printer._op(op, ids, "  ")]
    return lines


def print_module(module: Module, *, locations: bool = False) -> str:
    """A module as text: its functions, then one `eliminated` line per eliminated source module."""
    parts = [print_func(f, locations=locations) for f in module]
    log = [
        f'eliminated "{e.path}" by {e.pass_name}: {format_attr(e.reason)}\n'
        for e in module.eliminated
        if locations
    ]
    return "\n".join(parts) + ("\n" + "".join(log) if log else "")


def structural_text(func: Func) -> str:
    """Text without names of values, functions, parameters, and without locations."""
    return "\n".join(_Printer(locations=False, names=False).func(func))


def structural_hash(item: Func | Module) -> str:
    """Hex digest of the structure. Names and locations do not count; types and attributes do."""
    funcs = [item] if isinstance(item, Func) else list(item)
    text = "\n".join(structural_text(f) for f in funcs)
    return hashlib.sha256(text.encode()).hexdigest()


__all__ = [
    "Dim",
    "format_attr",
    "format_loc",
    "print_func",
    "print_module",
    "structural_hash",
    "structural_text",
]
