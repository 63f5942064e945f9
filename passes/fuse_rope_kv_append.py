"""Everything between the projections and attention in one group: heads, norms, rope, KV append.

```
%q = core.slice(%qkv) ..  %k = core.slice(%qkv) ..       %q, %kv = fuse.group(%qkv, ..)
%q1 = nn.rope(%q, ..)  %k1 = nn.rope(%k, ..)        ->     {kind = "rope_append"} { the same }
%kv = serve.kv_append(%kv_0, %k1, %v, %slots)
```

Pays because the rotated keys go straight into the cache and never to the arena. Works backwards
from the append over slices, reshapes, norms of single heads and rope; the queries of the attention
that reads the cache come along when something happens to them. Stops at a norm over the whole
projection (it needs the whole row first) and at any value that somebody else reads.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferc.ir.core import Module, Op, Value
from inferc.passes.analysis.token_parallel import shape_of
from inferc.passes.base import Pass, PassContext
from inferc.passes.fusion import NORMS, POINTWISE, Fuser
from inferc.passes.rebuild import step_funcs

PATTERN = "rope-kv-append"


@dataclass(frozen=True)
class FuseRopeKvAppend(Pass):
    """Groups of kind rope_append: results are q (if touched) and the cache."""

    name = "fuse-rope-kv-append"
    requires = frozenset({"paged"})

    def run(self, module: Module, context: PassContext) -> None:
        """Rewrite the step functions."""
        for func in step_funcs(module):
            fuser = Fuser(func, context.rewriter(func), context)
            for op in fuser.ops():
                if op.name == "serve.kv_append":
                    _fuse(fuser, op)


def _fuse(fuser: Fuser, append: Op) -> None:
    members = _cone(fuser, {append}, append.operands[1:3])
    readers = [u for u in append.result.users if u.name == "serve.paged_attention"]
    for queries in dict.fromkeys(u.operands[0] for u in readers):
        touched = _queries(fuser, members, queries)
        if touched == members:
            continue
        reason = fuser.refusal(touched)
        if reason is None:
            members = touched
        else:
            fuser.context.refuse(PATTERN, append, f"queries stay apart: {reason}")
    fuser.fuse(members, "rope_append", PATTERN)


def _queries(fuser: Fuser, members: set[Op], queries: Value) -> set[Op]:
    """`members` with the ops that make the queries; unchanged if those are only views."""
    op = queries.producer
    if op is None or not _absorbs(op) or fuser.func.is_result(queries):
        return members
    found = _cone(fuser, {*members, op}, op.operands)
    if all(o.name == "core.reshape" for o in found - members):
        return members
    return found


def _cone(fuser: Fuser, members: set[Op], values: tuple[Value, ...]) -> set[Op]:
    """`members` with the producers of `values`, as far back as only members read them."""
    found, stack = set(members), list(values)
    while stack:
        value = stack.pop()
        op = value.producer
        if op is None or op in found or not _absorbs(op):
            continue
        results = op.results
        if any(fuser.func.is_result(r) or set(r.users) - found for r in results):
            continue
        found.add(op)
        stack.extend(op.operands)
    return found


def _absorbs(op: Op) -> bool:
    if op.name in ("core.slice", "core.reshape", "nn.rope"):
        return True
    is_per_head = len(shape_of(op.results[0])) == 3
    return is_per_head and (op.name in NORMS or op.name in POINTWISE)
