"""Bisects a wrong result to one pass, and in it to one rewrite."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from inferc.ir.core import Module
from inferc.ir.rewrite import clone_module
from inferc.passes.base import Pass
from inferc.passes.manager import run_passes
from inferc.passes.registry import format_pass


@dataclass(frozen=True)
class BadRewrite:
    """The first wrong step: the pass, and its rewrite, counted from 1.

    `rewrite` is None if the pass is wrong whatever rewrites it is allowed: it does not go through
    the rewriter. `before` and `after` are the modules around the step.
    """

    pass_name: str
    index: int
    rewrite: int | None
    before: Module
    after: Module


def first_bad_rewrite(
    module: Module,
    passes: Sequence[Pass],
    is_good: Callable[[Module], bool],
    *,
    given: Collection[str] = (),
) -> BadRewrite | None:
    """Where the module turns bad; None if it stays good. Assumes that it then stays bad."""

    def prefix(count: int) -> Module:
        made = clone_module(module)
        run_passes(made, passes[:count], given=given)
        return made

    if is_good(prefix(len(passes))):
        return None
    count = _first_bad(lambda n: is_good(prefix(n)), 1, len(passes))
    before, bad = prefix(count - 1), passes[count - 1]
    facts = frozenset(given).union(bad.requires)

    def limited(fuel: int | None) -> tuple[Module, int]:
        made = clone_module(before)
        (record,) = run_passes(made, [bad], given=facts, fuel=fuel)
        return made, record.rewrites

    after, total = limited(None)
    if not is_good(limited(0)[0]):
        return BadRewrite(format_pass(bad), count - 1, None, before, after)
    number = _first_bad(lambda n: is_good(limited(n)[0]), 1, total)
    good, wrong = limited(number - 1)[0], limited(number)[0]
    return BadRewrite(format_pass(bad), count - 1, number, good, wrong)


def _first_bad(is_good: Callable[[int], bool], low: int, high: int) -> int:
    """The smallest number in low..high that is not good; `high` is known to be bad."""
    while low < high:
        middle = (low + high) // 2
        if is_good(middle):
            low = middle + 1
        else:
            high = middle
    return low
