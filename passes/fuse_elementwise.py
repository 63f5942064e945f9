"""Put every op that is in no group yet into one: the largest legal group of element-wise work.

```
%e = core.embedding(%w, %ids)           %h = fuse.group(%w, %ids) {kind = "embedding"} {
%h = core.mul(%e, %scale)          ->     the same, the constant inside
                                        }
```

After this pass a step function is a list of groups, with reshapes between them as views. Element-
wise and row-reducing ops grow over their readers as long as that is legal; an op that is neither (a
row gather, attention, rope tables) is a group alone. Never takes a reshape: as a view it is free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from inferc.ir.core import Func, Module, Op
from inferc.ir.ops.recurrent import SERVED
from inferc.ir.rewrite import Rewriter
from inferc.passes.analysis.token_parallel import shape_of
from inferc.passes.base import Pass, PassContext
from inferc.passes.fusion import NORMS, POINTWISE, VIEWS, Fuser, pointwise_like
from inferc.passes.rebuild import step_funcs

PATTERN, ALONE = "elementwise", "alone"
_REDUCTIONS = frozenset({"core.sum", "core.mean", "core.amax", "core.softmax"})
_KINDS = {
    "core.linear": "linear",
    "core.embedding": "embedding",
    "core.gather_rows": "gather",
    "nn.experts": "experts",
    "nn.rope_table": "rope_table",
    "serve.paged_attention": "attention",
    "serve.kv_append": "rope_append",
    "serve.k_append": "latent_append",
    "nn.head_linear": "head_linear",
    **dict.fromkeys(SERVED, "state"),
    **dict.fromkeys(NORMS, "norm"),
}


@dataclass(frozen=True)
class FuseElementwise(Pass):
    """Groups of all other kinds; afterwards every op of a step is in a group or a view."""

    name = "fuse-elementwise"
    requires = frozenset({"flat"})
    ensures = frozenset({"fused"})

    def run(self, module: Module, context: PassContext) -> None:
        """Rewrite the step functions."""
        for func in step_funcs(module):
            fuser = Fuser(func, context.rewriter(func), context)
            for op in fuser.ops():
                if any(r.uses or func.is_result(r) for r in op.results):
                    members = _members(fuser, op)
                    pattern = PATTERN if len(members) > 1 else ALONE
                    fuser.fuse(members, _KINDS.get(op.name, "elementwise"), pattern)
            _erase_constants(func, fuser.rewriter)


def _members(fuser: Fuser, op: Op) -> set[Op]:
    if op.name == "core.embedding":
        return fuser.grow([op], pointwise_like(op))
    if op.name in POINTWISE or op.name in _REDUCTIONS:
        return fuser.grow([op], _row_work_like(op), most_outputs=4)
    return {op}


def _row_work_like(root: Op) -> Callable[[Op], bool]:
    rows = shape_of(root.results[0])[:1]

    def accepts(op: Op) -> bool:
        is_row_work = op.name in POINTWISE or op.name in _REDUCTIONS
        return is_row_work and op.body is None and shape_of(op.results[0])[:1] == rows

    return accepts


def _erase_constants(func: Func, rewriter: Rewriter) -> None:
    for op in reversed(list(func.ops)):
        if op.name in VIEWS and not any(r.uses or func.is_result(r) for r in op.results):
            rewriter.erase(op)
