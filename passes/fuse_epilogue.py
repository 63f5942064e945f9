"""Let a matrix product do the element-wise work on its result while the sums are in registers.

```
%y = core.linear(%x, %w)            %h = fuse.group(%x, %w, %res) {kind = "linear"} {
%h = core.add(%res, %y)        ->     the same
                                    }
```

Takes bias, residual add, scales, soft-cap, and any other element-wise ops on the rows of the
result, as long as one value comes out. Pays because the product itself is never written and read
again. Linears go from last to first: of a sum of two products the later one takes the add. Does not
fire where the product is read elsewhere too.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferc.ir.core import Module, Op
from inferc.passes.base import Pass, PassContext
from inferc.passes.fusion import POINTWISE, Fuser, pointwise_like
from inferc.passes.rebuild import step_funcs

PATTERN = "epilogue"


@dataclass(frozen=True)
class FuseEpilogue(Pass):
    """Groups of kind linear."""

    name = "fuse-epilogue"
    requires = frozenset({"flat"})

    def run(self, module: Module, context: PassContext) -> None:
        """Rewrite the step functions."""
        for func in step_funcs(module):
            fuser = Fuser(func, context.rewriter(func), context)
            for op in reversed(fuser.ops()):
                if op.name == "core.linear":
                    _fuse(fuser, op)


def _fuse(fuser: Fuser, linear: Op) -> None:
    members = fuser.grow([linear], pointwise_like(linear))
    if len(members) > 1:
        fuser.fuse(members, "linear", PATTERN)
        return
    readers = [u for u in linear.result.users if u.name in POINTWISE]
    if readers:
        also = sorted({u.name for u in linear.result.users if u not in readers})
        why = f"also read by {', '.join(also)}" if also else "no single value comes out"
        fuser.context.refuse(PATTERN, linear, f"the product must be written anyway: {why}")
