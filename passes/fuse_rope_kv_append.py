"""Everything between the projections and attention in one group: heads, norms, rope, KV append.

```
%q = core.slice(%qkv) ..  %k = core.slice(%qkv) ..       %q, %kv = fuse.group(%qkv, ..)
%q1 = nn.rope(%q, ..)  %k1 = nn.rope(%k, ..)        ->     {kind = "rope_append"} { the same }
%kv = serve.kv_append(%kv_0, %k1, %v, %slots)
```

Pays because the rotated keys go straight into the cache and never to the arena. Works backwards
from the append over slices, reshapes, RMS norms of single heads and rope; the queries of the
attention that reads the cache come along when the same happens to them. Stops at any other op, such
as a norm over the whole projection (it needs the whole row first), and at any value that somebody
else reads.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferc.ir.core import Module, Op, Value
from inferc.passes.analysis.token_parallel import shape_of
from inferc.passes.base import Pass, PassContext
from inferc.passes.fusion import Fuser
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
    members = _heads(fuser, {append}, append.operands[1], turned=True)
    members = _heads(fuser, members, append.operands[2], turned=False)
    readers = [u for u in append.result.users if u.name == "serve.paged_attention"]
    for queries in dict.fromkeys(u.operands[0] for u in readers):
        touched = _queries(fuser, members, queries)
        if touched == members:
            continue
        reason = _turns_apart(members, touched) or fuser.refusal(touched)
        if reason is None:
            members = touched
        else:
            fuser.context.refuse(PATTERN, append, f"queries stay apart: {reason}")
    fuser.fuse(members, "rope_append", PATTERN)


def _queries(fuser: Fuser, members: set[Op], queries: Value) -> set[Op]:
    """`members` with the ops that make the queries; unchanged if those are only views."""
    op = queries.producer
    if op is None or fuser.func.is_result(queries):
        return members
    others = {u for u in queries.users if u.name == "serve.paged_attention"}
    found = _heads(fuser, members | others, queries, turned=True) - others
    if all(o.name == "core.reshape" for o in found - members):
        return members
    return found


def _turns_apart(members: set[Op], touched: set[Op]) -> str | None:
    """Why queries cannot be turned along with the keys."""
    keys = any(op.name == "nn.rope" for op in members)
    queries = any(op.name == "nn.rope" for op in touched - members)
    return None if keys == queries else "only one of queries and keys is turned here"


def _heads(fuser: Fuser, members: set[Op], value: Value, *, turned: bool) -> set[Op]:
    """`members` with the ops that make heads, as far back as only members read them.

    From the heads backwards: a rotation, a norm of each head, slices of the projection; values have
    neither rotation nor norm.
    """
    found, may_turn, may_norm = set(members), turned, turned
    while (op := value.producer) is not None and op not in found:
        if any(fuser.func.is_result(r) or set(r.users) - found for r in op.results):
            break
        if op.name == "nn.rope" and may_turn:
            may_turn = False
        elif op.name == "nn.rms_norm" and may_norm and _is_of_heads(op):
            may_turn = may_norm = False
        elif op.name == "core.slice" and op.attrs["axis"] == 1 and op.attrs["step"] == 1:
            may_turn = may_norm = False
        elif op.name != "core.reshape":
            break
        found.add(op)
        value = op.operands[0]
    return found


def _is_of_heads(norm: Op) -> bool:
    return len(shape_of(norm.result)) == 3 and len(norm.operands) == 2
