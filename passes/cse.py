"""Merges ops that compute the same.

    %a = core.add(%x, %y)          %a = core.add(%x, %y)
    %b = core.add(%x, %y)    =>    %c = core.mul(%a, %a)
    %c = core.mul(%a, %b)

Two ops are the same when card, operands, attributes and result types are. Ops that thread a state,
and groups, are never merged.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from inferc.ir.core import Func, Module, Op
from inferc.ir.text import format_attr
from inferc.passes.base import Pass, PassContext
from inferc.passes.driver import log_lost_modules


@dataclass(frozen=True)
class Cse(Pass):
    """Common subexpression elimination."""

    name = "cse"

    def run(self, module: Module, context: PassContext) -> None:
        """Rewrite every function, first op first: of two equal ops the earlier one stays."""
        for func in module:
            with log_lost_modules(func, context, "equal to another computation"):
                _run(func, context)


def _run(func: Func, context: PassContext) -> None:
    rewriter = context.rewriter(func)
    seen: dict[Hashable, Op] = {}
    for op in list(func.ops):
        if op.card.stateful or op.body is not None:
            continue
        first = seen.setdefault(_key(op), op)
        if first is not op:
            rewriter.replace(op, *first.results)
            context.hit("equal-ops")


def _key(op: Op) -> Hashable:
    # Attributes as text: 1, 1.0 and True are equal to Python, and -0.0 is equal to 0.0.
    attrs = tuple((name, format_attr(value)) for name, value in op.attrs.items())
    return op.name, op.operands, attrs, tuple(r.type for r in op.results)
