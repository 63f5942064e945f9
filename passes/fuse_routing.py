"""Put the whole choice of experts into one group.

```
%p = core.softmax(%logits)                  %w, %i = fuse.group(%logits) {kind = "routing"} {
%w, %i = core.topk(%p) {k = 2}        ->        the same
%y = nn.experts(%x, %i, %w, ..)             }
```

Takes everything that the indices and weights of experts are computed from, back to the product
that gives the logits: soft-max or sigmoid, biases, groups, top-k, renormalisation. A row of it is
tiny, so that one kernel a layer instead of ten saves their barriers. Reshapes are taken only
between members; wide rows are left to other groups.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferc.ir.core import Module, Op, Value
from inferc.ir.dims import Dim, product
from inferc.passes.analysis.token_parallel import shape_of
from inferc.passes.base import Pass, PassContext
from inferc.passes.fusion import POINTWISE, Fuser
from inferc.passes.rebuild import step_funcs

PATTERN = "routing"
_MEMBERS = POINTWISE | {
    "core.topk", "core.take_along", "core.put_along", "core.softmax", "core.sum", "core.mean",
    "core.amax", "core.reshape", "core.broadcast_to", "core.slice", "core.concat",
    "core.transpose", "core.iota",
}  # fmt: skip
_WIDEST = 4096  # elements of a row: more than any router has experts


@dataclass(frozen=True)
class FuseRouting(Pass):
    """Groups of kind routing."""

    name = "fuse-routing"
    requires = frozenset({"flat"})

    def run(self, module: Module, context: PassContext) -> None:
        """Rewrite the step functions."""
        for func in step_funcs(module):
            fuser = Fuser(func, context.rewriter(func), context)
            for op in fuser.ops():
                if op.name == "nn.experts":
                    members = _cone(op.operands[1:3])
                    if any(m.name != "core.reshape" for m in members):
                        fuser.fuse(members, "routing", PATTERN)


def _cone(roots: tuple[Value, ...]) -> set[Op]:
    """What the roots are computed from, without views at the border."""
    found: dict[Op, None] = {}
    stack = [v.producer for v in roots]
    while stack:
        op = stack.pop()
        if op is None or op in found or not _fits(op):
            continue
        found[op] = None
        stack += [v.producer for v in op.operands]
    members = set(found)
    while True:
        border = {m for m in members if m.name == "core.reshape" and not _inside(m, members, roots)}
        if not border:
            return members
        members -= border


def _inside(view: Op, members: set[Op], roots: tuple[Value, ...]) -> bool:
    """Whether a reshape stands between members."""
    read = all(u in members for u in view.result.users) and view.result not in roots
    return view.operands[0].producer in members and read


def _fits(op: Op) -> bool:
    sizes = [product(shape_of(r)[1:]) for r in op.results]
    narrow = all(not isinstance(s, Dim) and s <= _WIDEST for s in sizes)
    return op.name in _MEMBERS and op.body is None and narrow
