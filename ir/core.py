"""The graph: values, ops, functions, modules. Frozen to all but `Rewriter` and `Builder`.

A function is a flat SSA list of ops. Exactly one op, `fuse.group`, holds a body, which is a
function of its own without free values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from inferc.ir.card import AttrValue, Card, TypeMismatch, card
from inferc.ir.dims import Symbol
from inferc.ir.location import Location
from inferc.ir.types import Type


class Value:
    """A result of an op or an argument of a function. Compared by identity."""

    __slots__ = ("_uses", "hint", "index", "producer", "type")

    def __init__(self, type_: Type, producer: Op | None, index: int, hint: str) -> None:
        self.type = type_
        self.producer = producer  # None for an argument of a function
        self.index = index  # position among the results of the producer, or among the arguments
        self.hint = hint  # name in text; made unique when printed
        self._uses: dict[tuple[int, int], Use] = {}

    @property
    def uses(self) -> tuple[Use, ...]:
        """The operand slots that read this value, in order of insertion."""
        return tuple(self._uses.values())

    @property
    def users(self) -> tuple[Op, ...]:
        """The ops that read this value, each once."""
        return tuple(dict.fromkeys(use.op for use in self._uses.values()))

    def __repr__(self) -> str:
        return f"%{self.hint}: {self.type}"


@dataclass(frozen=True, eq=False)
class Use:
    """Operand `index` of `op`."""

    op: Op
    index: int


class Op:
    """One operation. `loc` has no default: an op of unknown origin cannot be built by accident."""

    __slots__ = ("_attrs", "_operands", "body", "card", "loc", "results")

    def __init__(
        self,
        card: Card,
        operands: Sequence[Value],
        attrs: Mapping[str, AttrValue],
        *,
        loc: Location,
        hints: Sequence[str] = (),
        body: Func | None = None,
        result_types: Sequence[Type] | None = None,
    ) -> None:
        self.card = card
        self.loc = loc
        self.body = body
        self._attrs = card.check_attrs(attrs)
        low, high = card.arity
        if len(operands) < low or (high is not None and len(operands) > high):
            raise TypeMismatch(f"{card.name}: takes {card.operands}, got {len(operands)} operands")
        if result_types is None:
            result_types = card.infer([v.type for v in operands], self._attrs)
        self._operands: tuple[Value, ...] = ()
        self._set_operands(tuple(operands))
        names = list(hints) + [self.short_name] * (len(result_types) - len(hints))
        self.results = tuple(Value(t, self, i, names[i]) for i, t in enumerate(result_types))

    @property
    def name(self) -> str:
        """Full name, `family.op`."""
        return self.card.name

    @property
    def short_name(self) -> str:
        """Name without the family."""
        return self.card.name.rpartition(".")[2]

    @property
    def operands(self) -> tuple[Value, ...]:
        """Values read."""
        return self._operands

    @operands.setter
    def operands(self, values: object) -> NoReturn:
        raise AttributeError("operands are changed by Rewriter.replace or Rewriter.set_operand")

    @property
    def attrs(self) -> Mapping[str, AttrValue]:
        """Attributes, defaults filled in."""
        return self._attrs

    @attrs.setter
    def attrs(self, values: object) -> NoReturn:
        raise AttributeError("attributes are changed by Rewriter.set_attrs")

    @property
    def result(self) -> Value:
        """The only result. Raises ValueError when there are several."""
        if len(self.results) != 1:
            raise ValueError(f"{self.name} has {len(self.results)} results")
        return self.results[0]

    def _set_operands(self, operands: tuple[Value, ...]) -> None:
        for i, value in enumerate(self._operands):
            value._uses.pop((id(self), i), None)
        self._operands = operands
        for i, value in enumerate(operands):
            value._uses[(id(self), i)] = Use(self, i)

    def __repr__(self) -> str:
        return f"<{self.name} {list(self._operands)}>"


@dataclass(eq=False)
class Func:
    """A function: symbols with ranges, arguments, ops in order, results."""

    name: str
    symbols: dict[str, Symbol] = field(default_factory=dict)
    args: list[Value] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    results: list[Value] = field(default_factory=list)
    version: int = 0  # bumped by the Rewriter only; analyses are cached by it

    def add_arg(self, hint: str, type_: Type) -> Value:
        """Append an argument."""
        value = Value(type_, None, len(self.args), hint)
        self.args.append(value)
        return value

    def params(self) -> dict[str, Op]:
        """The `param` ops by parameter name."""
        return {str(op.attrs["name"]): op for op in self.ops if op.name == "param"}

    def is_result(self, value: Value) -> bool:
        """Whether the function returns this value."""
        return any(value is r for r in self.results)


@dataclass(frozen=True)
class Eliminated:
    """A source module that no op stands for any more, and why."""

    path: str
    pass_name: str
    reason: str


@dataclass(eq=False)
class Module:
    """Functions by name, and the log of source modules that passes eliminated."""

    funcs: dict[str, Func] = field(default_factory=dict)
    eliminated: list[Eliminated] = field(default_factory=list)

    def add(self, func: Func) -> Func:
        """Add or replace a function by its name."""
        self.funcs[func.name] = func
        return func

    def __iter__(self) -> Iterator[Func]:
        return iter(self.funcs.values())


class Builder:
    """Appends ops to a function. The way for frontends and for new functions made by passes."""

    def __init__(self, func: Func) -> None:
        self.func = func

    def op(
        self,
        op_name: str,
        *operands: Value,
        loc: Location,
        hint: str | None = None,
        **attrs: AttrValue,
    ) -> Value:
        """Append an op with one result and return it. For several results use `ops`."""
        return self.ops(op_name, *operands, loc=loc, hints=(hint,) if hint else (), **attrs).result

    def ops(
        self,
        op_name: str,
        *operands: Value,
        loc: Location,
        hints: Sequence[str] = (),
        **attrs: AttrValue,
    ) -> Op:
        """Append an op and return it."""
        made = Op(card(op_name), operands, attrs, loc=loc, hints=hints)
        self.func.ops.append(made)
        return made

    def group(
        self,
        operands: Sequence[Value],
        body: Func,
        *,
        loc: Location,
        hints: Sequence[str] = (),
        **attrs: AttrValue,
    ) -> Op:
        """Append a `fuse.group` with `body`."""
        types = [v.type for v in body.results]
        made = Op(
            card("fuse.group"), operands, attrs, loc=loc, hints=hints, body=body, result_types=types
        )
        self.func.ops.append(made)
        return made

    def param(self, name: str, type_: Type, *, loc: Location) -> Value:
        """Append `param @name`."""
        made = Op(
            card("param"),
            (),
            {"name": name},
            loc=loc,
            hints=(name.replace(".weight", "").rpartition(".")[2] or "w",),
            result_types=(type_,),
        )
        self.func.ops.append(made)
        return made.result

    def constant(self, value: float | int | bool, dtype: str, *, loc: Location) -> Value:
        """Append a scalar `core.constant`."""
        return self.op("core.constant", loc=loc, values=(value,), shape=(), dtype=dtype)

    def returns(self, *values: Value) -> Func:
        """Set the results and hand the function back."""
        self.func.results = list(values)
        return self.func
