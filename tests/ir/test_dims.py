"""Symbolic sizes against brute force over small ranges."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferc.ir.dims import (
    InconclusiveDim,
    Size,
    Symbol,
    bounds,
    divide,
    evaluate,
    known_eq,
    known_le,
    parse_size,
    product,
    substitute,
    sym,
)

RANGES = {"B": Symbol("B", 0, 3), "S": Symbol("S", 1, 4), "T": Symbol("T", 2, 3)}


def sizes() -> st.SearchStrategy[Size]:
    leaves = st.integers(-4, 4) | st.sampled_from(sorted(RANGES)).map(sym)
    return st.recursive(
        leaves,
        lambda inner: st.tuples(st.sampled_from("+-*"), inner, inner).map(combine),
        max_leaves=6,
    )


def combine(parts: tuple[str, Size, Size]) -> Size:
    sign, a, b = parts
    return a + b if sign == "+" else a - b if sign == "-" else a * b


def bindings() -> Iterator[dict[str, int]]:
    spans = [range(s.low, s.high + 1) for s in RANGES.values()]
    return (dict(zip(RANGES, values, strict=True)) for values in itertools.product(*spans))


@given(sizes(), sizes())
def test_arithmetic(a: Size, b: Size) -> None:
    for bound in bindings():
        x, y = evaluate(a, bound), evaluate(b, bound)
        assert evaluate(a + b, bound) == x + y
        assert evaluate(a - b, bound) == x - y
        assert evaluate(a * b, bound) == x * y
        assert evaluate(product((a, b, 2)), bound) == 2 * x * y


@given(sizes(), sizes())
def test_canonical_form_decides_equality(a: Size, b: Size) -> None:
    assert a + b == b + a
    assert a * b == b * a
    assert (a + b) - b == a
    assert hash(a + b) == hash(b + a)


@given(sizes(), sizes())
def test_comparisons_are_sound(a: Size, b: Size) -> None:
    pairs = [(evaluate(a, bound), evaluate(b, bound)) for bound in bindings()]
    equal, below = known_eq(a, b, RANGES), known_le(a, b, RANGES)
    if equal is not None:
        assert {x == y for x, y in pairs} == {equal}
    if below is not None:
        assert {x <= y for x, y in pairs} == {below}


@given(sizes())
def test_bounds_hold(a: Size) -> None:
    low, high = bounds(a, RANGES)
    assert all(low <= evaluate(a, bound) <= high for bound in bindings())


@given(sizes(), sizes())
def test_division_is_exact_or_refused(a: Size, b: Size) -> None:
    try:
        quotient = divide(a, b)
    except InconclusiveDim:
        return
    for bound in bindings():
        assert evaluate(quotient, bound) * evaluate(b, bound) == evaluate(a, bound)


@given(sizes(), sizes())
def test_division_undoes_multiplication(a: Size, b: Size) -> None:
    single = isinstance(b, int) or len(b.terms) == 1
    if b != 0 and single:
        assert divide(a * b, b) == a


@given(sizes(), sizes())
def test_substitution(a: Size, b: Size) -> None:
    for bound in bindings():
        inner = {**bound, "B": evaluate(b, bound)}
        assert evaluate(substitute(a, {"B": b}), bound) == evaluate(a, inner)


@given(sizes())
def test_text_round_trip(a: Size) -> None:
    assert parse_size(str(a)) == a


@pytest.mark.parametrize("text", ["", "+", "2*", "B-", "1.5", "B/2", "a b", "*B"])
def test_bad_text(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_size(text)


def test_unknown_is_none() -> None:
    assert known_eq(sym("B"), sym("S")) is None
    assert known_le(sym("B"), 3) is None
    assert known_le(sym("B"), 3, RANGES) is True
    assert known_eq(sym("S"), 9, RANGES) is False


def test_unbound_symbol_is_named() -> None:
    with pytest.raises(KeyError, match="S"):
        evaluate(sym("S") + 1, {"B": 2})


@pytest.mark.parametrize(("low", "high", "divisor"), [(3, 2, 1), (-1, 2, 1), (0, 2, 0)])
def test_bad_range(low: int, high: int, divisor: int) -> None:
    with pytest.raises(ValueError, match="bad range"):
        Symbol("B", low, high, divisor)
