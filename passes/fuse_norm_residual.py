"""Norms with the element-wise work around them, and with the norms next to them, in one group.

```
%a = nn.rms_norm(%o, %w1)           %h, %n = fuse.group(%o, %w1, %x, %w2) {kind = "norm"} {
%h = core.add(%x, %a)          ->     the same; yields the sum and its norm
%n = nn.rms_norm(%h, %w2)           }
```

Pays because the row stays in registers: the sum is written for its later readers, but not read
back. A residual add that reads a matrix product is left to that product's epilogue, which saves
more: there the product itself is never written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from inferc.ir.core import Module, Op
from inferc.passes.analysis.token_parallel import shape_of
from inferc.passes.base import Pass, PassContext
from inferc.passes.fusion import NORMS, POINTWISE, Fuser, sole_reader
from inferc.passes.rebuild import step_funcs

PATTERN = "norm-residual"
_PRODUCERS = ("core.linear", "core.embedding")


@dataclass(frozen=True)
class FuseNormResidual(Pass):
    """Groups of kind norm."""

    name = "fuse-norm-residual"
    requires = frozenset({"flat"})

    def run(self, module: Module, context: PassContext) -> None:
        """Rewrite the step functions."""
        for func in step_funcs(module):
            fuser = Fuser(func, context.rewriter(func), context)
            for op in fuser.ops():
                if op.name in NORMS and op.operands:  # an op without operands has been fused
                    _fuse(fuser, op)


def _fuse(fuser: Fuser, norm: Op) -> None:
    accepts = _row_op_like(fuser, norm)
    members = _with_producers(fuser, norm, accepts)
    members = fuser.grow(members, accepts, most_outputs=3)
    if len(members) > 1:
        fuser.fuse(members, "norm", PATTERN)


def _with_producers(fuser: Fuser, norm: Op, accepts: Callable[[Op], bool]) -> set[Op]:
    """The norm with the element-wise ops that make its input."""
    members, op = {norm}, norm.operands[0].producer
    while op is not None and op.body is None and op.name in POINTWISE and accepts(op):
        if fuser.refusal({*members, op}) is not None:
            break
        members.add(op)
        producers = [v.producer for v in op.operands if shape_of(v) == shape_of(op.results[0])]
        op = next((p for p in producers if p is not None and p.name in POINTWISE), None)
    return members


def _row_op_like(fuser: Fuser, norm: Op) -> Callable[[Op], bool]:
    shape = shape_of(norm.results[0])

    def accepts(op: Op) -> bool:
        if op.name not in POINTWISE and op.name not in NORMS:
            return False
        if any(shape_of(r) != shape for r in op.results):
            return False
        for value in op.operands:
            maker = value.producer
            if maker is not None and maker.body is None and maker.name in _PRODUCERS:
                if sole_reader(value, fuser.func) is op:
                    why = f"{op.name} is left to the epilogue of {maker.name}, which saves more"
                    fuser.context.refuse(PATTERN, norm, why)
                    return False
        return True

    return accepts
