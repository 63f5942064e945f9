"""The op card: everything that is known of an op, declared once.

Type inference, verifier, printer and parser, interpreter, generated tests, cost and the op
reference page all read the card. Adding an op is adding a card.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inferc.ir.dims import Dim, Size
from inferc.ir.types import Type

AttrValue = None | bool | int | float | str | Dim | tuple["AttrValue", ...]
Attrs = Mapping[str, AttrValue]
Infer = Callable[[Sequence[Type], Attrs], tuple[Type, ...]]
Reference = Callable[..., Any]
Count = Callable[[Sequence[Type], Attrs], Size]
Counts = Callable[[Sequence[Type], Attrs], tuple[Size, ...]]


class TypeMismatch(ValueError):
    """Operand types or attributes do not fit the card; the message names which."""


@dataclass(frozen=True)
class Attr:
    """An attribute: its name, the Python types allowed, and whether it may be left out."""

    name: str
    kinds: tuple[type, ...]
    required: bool = True
    default: AttrValue = None
    choices: tuple[AttrValue, ...] = ()


@dataclass(frozen=True)
class Sample:
    """One case for the generated tests: operand types (with concrete sizes) and attributes."""

    operands: tuple[Type, ...]
    attrs: Attrs = field(default_factory=dict)
    values: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Values of integer operands that must be consistent (indices into another operand)."""


@dataclass(frozen=True)
class BadSample:
    """A case that `infer` must refuse, and a part of the message."""

    operands: tuple[Type, ...]
    attrs: Attrs
    message: str


@dataclass(frozen=True)
class Card:
    """An op.

    Attributes:
        name: `family.op`.
        summary: one sentence for the reference page.
        operands: spec of each operand, e.g. `x: [.., K]`; a trailing `?` marks it optional
            (optional operands come last), `*` a variadic last one.
        attrs: attributes in print order.
        infer: operand types and attributes to result types; raises TypeMismatch.
        reference: `reference(*arrays, **attrs)` on numpy arrays, returns an array or a tuple.
        flops: floating operations as a formula of the dims.
        reads: bytes read of each operand, for an op that reads only part of one, such as a row
            lookup; by default every operand is read once.
        writes: bytes written of each result; by default every result is written once.
        stateful: threads a state value (KV cache): never merged, duplicated or dropped while used.
        samples: cases for the generated tests.
        refused: cases that infer must refuse, for the generated tests.
    """

    name: str
    summary: str
    operands: tuple[str, ...]
    infer: Infer
    reference: Reference
    attrs: tuple[Attr, ...] = ()
    flops: Count = lambda types, attrs: 0
    reads: Counts | None = None
    writes: Counts | None = None
    stateful: bool = False
    samples: tuple[Sample, ...] = ()
    refused: tuple[BadSample, ...] = ()

    @property
    def arity(self) -> tuple[int, int | None]:
        """Fewest and most operands; None is no limit."""
        if self.operands and self.operands[-1].startswith("*"):
            return len(self.operands) - 1, None
        needed = sum(not spec.split(":")[0].endswith("?") for spec in self.operands)
        return needed, len(self.operands)

    def check_attrs(self, attrs: Attrs) -> dict[str, AttrValue]:
        """Attributes in declared order with defaults filled in. Raises TypeMismatch."""
        known = {a.name: a for a in self.attrs}
        for name in attrs:
            if name not in known:
                raise TypeMismatch(f"{self.name}: unknown attribute {name!r}; known: {list(known)}")
        out: dict[str, AttrValue] = {}
        for attr in self.attrs:
            if attr.name not in attrs:
                if attr.required:
                    raise TypeMismatch(f"{self.name}: attribute {attr.name!r} is missing")
                out[attr.name] = attr.default
                continue
            out[attr.name] = self._checked(attr, attrs[attr.name])
        return out

    def _checked(self, attr: Attr, value: AttrValue) -> AttrValue:
        if isinstance(value, list):
            raise TypeMismatch(f"{self.name}: attribute {attr.name!r} is a list; use a tuple")
        if float in attr.kinds and type(value) is int:
            value = float(value)
        if value is None and not attr.required:
            return None
        if not isinstance(value, attr.kinds) or (
            isinstance(value, bool) and bool not in attr.kinds
        ):
            kinds = " or ".join(k.__name__ for k in attr.kinds)
            raise TypeMismatch(
                f"{self.name}: attribute {attr.name!r} must be {kinds}, got {value!r}"
            )
        if attr.choices and value not in attr.choices:
            raise TypeMismatch(
                f"{self.name}: attribute {attr.name!r} must be one of {attr.choices}, got {value!r}"
            )
        return value


CARDS: dict[str, Card] = {}


def register(card: Card) -> Card:
    """Put a card into the table. Raises ValueError if the name is taken."""
    if card.name in CARDS:
        raise ValueError(f"op {card.name} has two cards")
    CARDS[card.name] = card
    return card


def card(name: str) -> Card:
    """The card of an op. Raises KeyError that lists near names."""
    try:
        return CARDS[name]
    except KeyError:
        import difflib

        near = difflib.get_close_matches(name, CARDS, 3)
        raise KeyError(
            f"no op {name!r}" + (f"; did you mean {', '.join(near)}?" if near else "")
        ) from None
