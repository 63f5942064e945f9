"""Checks of values that callers hand in."""

from numbers import Integral, Real
from typing import Any, TypeGuard

from inferc.errors import RequestError


def require(name: str, value: object, expected: str, holds: bool) -> None:
    """Refuse a value, naming it, what was expected and what was found."""
    if not holds:
        raise RequestError(f"{name}: expected {expected}, found {value!r:.80}.")


def is_integer(value: Any) -> TypeGuard[int]:
    """Whether `value` counts: an int of Python or numpy, and no bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: Any) -> TypeGuard[float]:
    """Whether `value` is a real number (which may be NaN or infinite), and no bool."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    """Whether `value` is an integer of at least 1."""
    return is_integer(value) and value >= 1
