"""Removes ops whose results nobody reads.

    %a = core.neg(%x)    =>    return %x
    return %x

Ops that thread a state stay whatever becomes of their results; so do arguments. A parameter that
nobody reads goes, and its module is logged as eliminated.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferc.ir.core import Func, Module
from inferc.passes.base import Pass, PassContext
from inferc.passes.driver import log_lost_modules


@dataclass(frozen=True)
class Dce(Pass):
    """Dead code elimination."""

    name = "dce"
    ensures = frozenset({"normalized"})

    def run(self, module: Module, context: PassContext) -> None:
        """Rewrite every function, last op first."""
        for func in module:
            with log_lost_modules(func, context, "its result is not used"):
                _run(func, context)


def _run(func: Func, context: PassContext) -> None:
    rewriter = context.rewriter(func)
    for op in reversed(list(func.ops)):
        read = any(r.uses or func.is_result(r) for r in op.results)
        if not read and not op.card.stateful:
            rewriter.spend()
            rewriter.erase(op)
            context.hit("dead-op")
