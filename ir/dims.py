"""Symbolic sizes: an int, or a canonical sum of products of named symbols.

Comparisons are three-valued. `None` means unknown: a pass leaves the code alone, codegen emits a
check.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Union

Monomial = tuple[str, ...]
Size = Union[int, "Dim"]


class InconclusiveDim(ValueError):
    """An operation on symbolic sizes has no exact answer, and none is guessed."""


@dataclass(frozen=True)
class Symbol:
    """A named size with its range (both ends inclusive) and a divisor of every value it takes."""

    name: str
    low: int
    high: int
    divisor: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high or self.divisor < 1:
            raise ValueError(f"symbol {self.name}: bad range {self.low}..{self.high}")

    def __str__(self) -> str:
        multiple = f" mult {self.divisor}" if self.divisor > 1 else ""
        return f"{self.name} in {self.low}..{self.high}{multiple}"


@dataclass(frozen=True)
class Dim:
    """A size that is not a constant: `terms` maps sorted monomials to non-zero coefficients."""

    terms: tuple[tuple[Monomial, int], ...]

    def __add__(self, other: Size) -> Size:
        total = dict(self.terms)
        for monomial, factor in _terms(other):
            total[monomial] = total.get(monomial, 0) + factor
        return _canonical(total)

    def __mul__(self, other: Size) -> Size:
        total: dict[Monomial, int] = {}
        for left, a in self.terms:
            for right, b in _terms(other):
                key = tuple(sorted(left + right))
                total[key] = total.get(key, 0) + a * b
        return _canonical(total)

    def __neg__(self) -> Size:
        return self * -1

    def __sub__(self, other: Size) -> Size:
        return self + (other * -1)

    def __rsub__(self, other: int) -> Size:
        return (self * -1) + other

    __radd__ = __add__
    __rmul__ = __mul__

    def __floordiv__(self, other: Size) -> Size:
        return divide(self, other)

    def __rfloordiv__(self, other: int) -> Size:
        return divide(other, self)

    def symbols(self) -> frozenset[str]:
        """Names of all symbols in this size."""
        return frozenset(name for monomial, _ in self.terms for name in monomial)

    def __str__(self) -> str:
        text = ""
        for i, (monomial, factor) in enumerate(self.terms):
            sign, shown = ("-", -factor) if i and factor < 0 else ("+", factor)
            names = "*".join(monomial)
            term = str(shown) if not monomial else names if shown == 1 else f"{shown}*{names}"
            text += f" {sign} {term}" if i else term
        return text

    __repr__ = __str__


def sym(name: str) -> Dim:
    """The size that is just the symbol `name`."""
    return Dim((((name,), 1),))


def _terms(size: Size) -> tuple[tuple[Monomial, int], ...]:
    if isinstance(size, Dim):
        return size.terms
    return (((), int(size)),) if size else ()


def _canonical(total: dict[Monomial, int]) -> Size:
    kept = {m: f for m, f in total.items() if f}
    if not kept:
        return 0
    if set(kept) == {()}:
        return kept[()]
    return Dim(tuple(sorted(kept.items(), key=lambda t: (-len(t[0]), t[0]))))


def product(sizes: tuple[Size, ...]) -> Size:
    """Product of sizes; 1 for none."""
    total: Size = 1
    for size in sizes:
        total = total * size
    return total


def divide(size: Size, by: Size) -> Size:
    """Exact quotient. Raises InconclusiveDim if it is not known to be exact."""
    if isinstance(size, int) and isinstance(by, int):
        if by == 0 or size % by:
            raise InconclusiveDim(f"{size} is not a multiple of {by}")
        return size // by
    divisor = _terms(by)
    if len(divisor) != 1:
        if size == by:
            return 1
        raise InconclusiveDim(f"cannot divide {size} by {by}")
    (by_monomial, by_factor), quotient = divisor[0], dict[Monomial, int]()
    for monomial, factor in _terms(size):
        rest = list(monomial)
        for name in by_monomial:
            if name not in rest:
                raise InconclusiveDim(f"cannot divide {size} by {by}")
            rest.remove(name)
        if factor % by_factor:
            raise InconclusiveDim(f"{size} is not known to be a multiple of {by}")
        quotient[tuple(rest)] = factor // by_factor
    return _canonical(quotient)


def evaluate(size: Size, bindings: Mapping[str, int]) -> int:
    """Value of `size` when every symbol is bound. Raises KeyError naming an unbound symbol."""
    total = 0
    for monomial, factor in _terms(size):
        value = factor
        for name in monomial:
            value *= bindings[name]
        total += value
    return total


def substitute(size: Size, replacements: Mapping[str, Size]) -> Size:
    """Replace symbols by sizes; symbols not named stay."""
    total: Size = 0
    for monomial, factor in _terms(size):
        value: Size = factor
        for name in monomial:
            value = value * replacements.get(name, sym(name))
        total = total + value
    return total


def bounds(size: Size, symbols: Mapping[str, Symbol]) -> tuple[int, int]:
    """Limits of the value over the ranges of the symbols; exact if no symbol occurs twice."""
    low = high = 0
    for monomial, factor in _terms(size):
        small = large = 1
        for name in monomial:
            small, large = small * symbols[name].low, large * symbols[name].high
        if factor < 0:
            small, large = large, small
        low, high = low + factor * small, high + factor * large
    return low, high


def known_eq(a: Size, b: Size, symbols: Mapping[str, Symbol] | None = None) -> bool | None:
    """True, False, or None when it depends on the values (or the ranges are not given)."""
    difference = a - b
    if isinstance(difference, int):
        return difference == 0
    if symbols is not None:
        low, high = bounds(difference, symbols)
        if low > 0 or high < 0:
            return False
    return None


def known_le(a: Size, b: Size, symbols: Mapping[str, Symbol] | None = None) -> bool | None:
    """Whether a <= b for all, for no, or (None) for unknown values of the symbols."""
    difference = b - a
    if isinstance(difference, int):
        return difference >= 0
    if symbols is None:
        return None
    low, high = bounds(difference, symbols)
    if low >= 0:
        return True
    return False if high < 0 else None


_TERM = re.compile(r"\s*([+-]?)\s*([A-Za-z_0-9*\s]+?)\s*(?=[+-]|$)")


def parse_size(text: str) -> Size:
    """Read what `str(size)` writes, e.g. `2*B*S + 1`."""
    total: Size = 0
    position = 0
    if not text.strip():
        raise ValueError("not a size: ''")
    while position < len(text):
        match = _TERM.match(text, position)
        if match is None:
            raise ValueError(f"not a size: {text!r}")
        value: Size = -1 if match[1] == "-" else 1
        for factor in match[2].split("*"):
            name = factor.strip()
            if name.isdigit():
                value = value * int(name)
            elif name.isidentifier():
                value = value * sym(name)
            else:
                raise ValueError(f"not a size: {text!r}")
        total, position = total + value, match.end()
    return total
