"""The one door for mutation. Keeps uses, locations, order and the version right by itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from inferc.ir.card import AttrValue, card
from inferc.ir.core import Eliminated, Func, Module, Op, Use, Value
from inferc.ir.dims import Symbol
from inferc.ir.location import Location, derive
from inferc.ir.types import Type

OnChange = Callable[[str], None]


class OutOfFuel(Exception):
    """The rewriter has done as many rewrites as it was allowed (bisection of wrong results)."""


@dataclass
class Fuel:
    """A budget of rewrites, shared by the rewriters of a run; None is no limit."""

    limit: int | None = None
    used: int = 0

    def spend(self) -> None:
        """Count one rewrite. Raises OutOfFuel when the budget is used up."""
        if self.limit is not None and self.used >= self.limit:
            raise OutOfFuel
        self.used += 1


def _unnamed(value: Value) -> bool:
    """Whether the hint is no more than the name of the op, perhaps numbered by the printer."""
    if value.producer is None:
        return False
    return re.fullmatch(rf"{value.producer.short_name}(_\d+)?", value.hint) is not None


class Rewriter:
    """Edits one function on behalf of one pass.

    New ops are inserted before an anchor op; replacing an op gives the new ops a location derived
    from all old ones. While a pass iterates over `list(func.ops)`, it may replace or erase the
    current op and insert before it.
    """

    def __init__(
        self, func: Func, pass_name: str, *, fuel: Fuel | None = None, module: Module | None = None
    ) -> None:
        self.func, self.pass_name, self.module = func, pass_name, module
        self.fuel = Fuel() if fuel is None else fuel
        self._near = 0  # index of the last edit
        self._fresh: list[Op] = []  # inserted since the last rewrite was counted

    # -- insertion
    def insert(
        self,
        op_name: str,
        *operands: Value,
        before: Op | None,
        of: Sequence[Op] | Location,
        hint: str | Sequence[str] = (),
        **attrs: AttrValue,
    ) -> Op:
        """Insert an op before `before` (at the end if None); its location derives from `of`."""
        hints = (hint,) if isinstance(hint, str) else hint
        made = Op(card(op_name), operands, attrs, loc=self._loc(of), hints=hints)
        self._place(made, before)
        return made

    def insert_group(
        self,
        operands: Sequence[Value],
        body: Func,
        *,
        before: Op | None,
        of: Sequence[Op] | Location,
        hints: Sequence[str] = (),
        **attrs: AttrValue,
    ) -> Op:
        """Insert a `fuse.group`."""
        types = [r.type for r in body.results]
        made = Op(
            card("fuse.group"), operands, attrs, loc=self._loc(of), hints=hints, body=body,
            result_types=types,
        )  # fmt: skip
        self._place(made, before)
        return made

    def insert_param(
        self, name: str, type_: Type, *, before: Op | None, of: Sequence[Op] | Location
    ) -> Op:
        """Insert `param @name`."""
        made = Op(
            card("param"),
            (),
            {"name": name},
            loc=self._loc(of),
            hints=("w",),
            result_types=(type_,),
        )
        self._place(made, before)
        return made

    def _place(self, op: Op, before: Op | None) -> None:
        at = len(self.func.ops) if before is None else self._index(before)
        self.func.ops.insert(at, op)
        self._fresh.append(op)
        self.func.version += 1

    def _index(self, op: Op) -> int:
        # Passes walk in order, so the op is mostly near the last one edited: looking there first
        # keeps a pass near linear in the number of ops.
        ops = self.func.ops
        spans = ((self._near - 32, self._near + 32), (self._near - 512, self._near + 512))
        for low, high in (*spans, (0, len(ops))):
            try:
                self._near = ops.index(op, max(low, 0), max(high, 0))
            except ValueError:
                continue
            return self._near
        raise ValueError(f"{op.name} is not in @{self.func.name}")

    def _loc(self, of: Sequence[Op] | Location) -> Location:
        if isinstance(of, list | tuple):
            return derive(self.pass_name, [op.loc for op in of])
        return of  # type: ignore[return-value]

    # -- replacement
    def replace_value(self, old: Value, new: Value) -> None:
        """Let every reader of `old`, and the function's results, read `new`."""
        for use in old.uses:
            operands = list(use.op.operands)
            operands[use.index] = new
            use.op._set_operands(tuple(operands))
        self.func.results = [new if r is old else r for r in self.func.results]
        self.func.version += 1

    def replace(self, old: Op, *news: Value) -> None:
        """Replace all results of `old` and erase it. Counts as one rewrite."""
        self.spend()
        if len(news) != len(old.results):
            raise ValueError(f"{old.name} has {len(old.results)} results, got {len(news)} values")
        for result, new in zip(old.results, news, strict=True):
            if result.type != new.type:
                raise ValueError(
                    f"{self.pass_name}: replacing {old.name} of type {result.type} by {new.type}"
                )
            if _unnamed(new) and not _unnamed(result):
                new.hint = result.hint
            self.replace_value(result, new)
        self.erase(old)

    def set_operand(self, use: Use, new: Value) -> None:
        """Let one operand slot read another value. Result types must not depend on it."""
        operands = list(use.op.operands)
        operands[use.index] = new
        use.op._set_operands(tuple(operands))
        self.func.version += 1

    def set_attrs(self, op: Op, **attrs: AttrValue) -> None:
        """Change attributes that do not change result types."""
        op._attrs = op.card.check_attrs({**op.attrs, **attrs})
        self.func.version += 1

    def set_results(self, *values: Value) -> None:
        """Change what the function returns."""
        self.func.results = list(values)
        self.func.version += 1

    def erase(self, op: Op) -> None:
        """Remove an op whose results nobody reads. Raises ValueError if somebody does."""
        for result in op.results:
            if result.uses or self.func.is_result(result):
                raise ValueError(f"{op.name}: %{result.hint} is still read")
        del self.func.ops[self._index(op)]
        op._set_operands(())
        self.func.version += 1

    def eliminated(self, op: Op, reason: str) -> None:
        """Log that the source modules of an op may have no op any more, and why."""
        if self.module is not None:
            for root in op.loc.roots():
                entry = Eliminated(root.path, self.pass_name, reason)
                if entry not in self.module.eliminated:
                    self.module.eliminated.append(entry)

    def spend(self) -> None:
        """Count one rewrite. Raises OutOfFuel when the budget is used up.

        What was inserted for the rewrite that does not happen is then removed again.
        """
        try:
            self.fuel.spend()
        except OutOfFuel:
            for op in reversed(self._fresh):
                read = any(r.uses or self.func.is_result(r) for r in op.results)
                if op in self.func.ops and not read:
                    self.erase(op)
            raise
        finally:
            self._fresh = []


def outline(
    ops: Sequence[Op], outputs: Sequence[Value], symbols: Mapping[str, Symbol]
) -> tuple[list[Value], Func]:
    """Copy ops into a group body.

    Returns:
        The outside values that the ops read (in order of first use) and the body, whose arguments
        stand for them and which yields `outputs`.
    """
    body = Func("body", dict(symbols))
    inside: dict[Value, Value] = {}
    operands: list[Value] = []
    members = {r for op in ops for r in op.results}
    for op in ops:
        for value in op.operands:
            if value not in members and value not in inside:
                operands.append(value)
                inside[value] = body.add_arg(value.hint, value.type)
        copied = Op(
            op.card, [inside[v] for v in op.operands], op.attrs, loc=op.loc,
            hints=[r.hint for r in op.results], body=op.body,
            result_types=[r.type for r in op.results],
        )  # fmt: skip
        body.ops.append(copied)
        inside.update(zip(op.results, copied.results, strict=True))
    body.results = [inside[v] for v in outputs]
    return operands, body


def clone(func: Func, name: str | None = None) -> Func:
    """A copy of a function that shares nothing but cards, types and locations."""
    copied = Func(name or func.name, dict(func.symbols))
    values = {a: copied.add_arg(a.hint, a.type) for a in func.args}
    for op in func.ops:
        new = Op(
            op.card, [values[v] for v in op.operands], op.attrs, loc=op.loc,
            hints=[r.hint for r in op.results], body=clone(op.body) if op.body else None,
            result_types=[r.type for r in op.results],
        )  # fmt: skip
        copied.ops.append(new)
        values.update(zip(op.results, new.results, strict=True))
    copied.results = [values[r] for r in func.results]
    return copied


def clone_module(module: Module) -> Module:
    """A copy of a module."""
    copied = Module(eliminated=list(module.eliminated))
    for func in module:
        copied.add(clone(func))
    return copied
