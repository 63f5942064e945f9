"""Canonical form: one spelling for what can be spelled in several ways.

    %t = core.transpose(%x) {perm = (0, 2, 1, 3)}         %s = core.square(%x)
    %p = core.mul(%t, %t)                           =>    return %s
    %r = core.transpose(%p) {perm = (0, 2, 1, 3)}
    return %r

The rules stand by subject in `canonical_arithmetic`, `canonical_shape` and `canonical_transpose`.
They never guess: a size that is not known to be equal, a value with a second reader where that
would repeat work, or another axis leaves the op alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferc.ir.core import Module
from inferc.passes.base import Pass, PassContext
from inferc.passes.canonical_arithmetic import ARITHMETIC
from inferc.passes.canonical_batch import BATCH
from inferc.passes.canonical_causal import CAUSAL
from inferc.passes.canonical_heads import HEADS
from inferc.passes.canonical_lookup import LOOKUP
from inferc.passes.canonical_repeats import REPEATS
from inferc.passes.canonical_shape import SHAPE
from inferc.passes.canonical_transpose import TRANSPOSE, reshape_units
from inferc.passes.driver import apply_patterns


@dataclass(frozen=True)
class Canonicalize(Pass):
    """Applies the canonical forms until none applies."""

    name = "canonicalize"

    def run(self, module: Module, context: PassContext) -> None:
        """Rewrite every function."""
        for func in module:
            patterns = (*ARITHMETIC, *REPEATS, *SHAPE, *TRANSPOSE, *LOOKUP, *BATCH, *CAUSAL, *HEADS)
            apply_patterns(func, context, patterns)
            apply_patterns(func, context, (*patterns, reshape_units))
