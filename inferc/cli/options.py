"""Kinds of option values for argparse: a wrong one is refused by name, before any work."""

from __future__ import annotations

import argparse


def count(text: str) -> int:
    """A whole number of at least 1."""
    if text.isascii() and text.isdigit() and int(text) >= 1:
        return int(text)
    raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, found '{text}'")


def count_or_zero(text: str) -> int:
    """A whole number of at least 0."""
    if text.isascii() and text.isdigit():
        return int(text)
    raise argparse.ArgumentTypeError(f"expected a whole number of at least 0, found '{text}'")


def counts(text: str) -> tuple[int, ...]:
    """Counts between commas: `1,2,8`."""
    return tuple(count(part) for part in text.split(","))
