"""The rows of latent attention without copies: keys to their pages, queries beside each other.

```
%n = nn.rms_norm(%c, %w)   %r = nn.rope(%s, ..)            %kv = fuse.group(%c, %s, ..)
%k = core.concat(%n, %r)                              ->     {kind = "latent_append"} { the same }
%kv = serve.k_append(%kv_0, %k, %slots)

%l = nn.head_linear(%qn, %w)   %r = nn.rope(%qs, ..)       %q = fuse.group(%qn, %qs, %w, ..)
%q = core.concat(%l, %r) {axis = 2}                   ->     {kind = "head_linear"} { the same }
```

The normed latent and the turned part go straight into the pages; the product of each head is
written where the query has its place, the turned part beside it. Slices of rows in front are read
where they lie. Stops at values that somebody else reads.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferc.ir.core import Module, Op, Value
from inferc.passes.analysis.token_parallel import shape_of
from inferc.passes.base import Pass, PassContext
from inferc.passes.fusion import Fuser, sole_reader
from inferc.passes.rebuild import step_funcs

APPEND, PRODUCT = "latent-append", "head-linear"


@dataclass(frozen=True)
class FuseLatent(Pass):
    """Groups of kinds latent_append and head_linear."""

    name = "fuse-latent"
    requires = frozenset({"paged"})

    def run(self, module: Module, context: PassContext) -> None:
        """Rewrite the step functions."""
        for func in step_funcs(module):
            fuser = Fuser(func, context.rewriter(func), context)
            for op in fuser.ops():
                if op.name == "serve.k_append":
                    _keep(fuser, _append(fuser, op), "latent_append", APPEND)
                elif op.name == "nn.head_linear":
                    _keep(fuser, _product(fuser, op), "head_linear", PRODUCT)


def _keep(fuser: Fuser, members: set[Op], kind: str, pattern: str) -> None:
    if any(op.name != "core.reshape" for op in members) and len(members) > 1:
        fuser.fuse(members, kind, pattern)


def _append(fuser: Fuser, append: Op) -> set[Op]:
    """The append with the ops that make its keys."""
    members = _views(fuser, {append}, append.operands[1])
    joined = _source(members, append.operands[1])
    if not _may_join(fuser, members, joined, parts=2):
        return members
    assert joined is not None
    members.add(joined)
    own, shared = joined.operands
    members = _through(fuser, members, own, "nn.rms_norm")
    return _through(fuser, members, shared, "nn.rope")


def _product(fuser: Fuser, product: Op) -> set[Op]:
    """The product with what is joined behind it, and the slices that both read."""
    members = _views(fuser, {product}, product.operands[0])
    joined = sole_reader(product.result, fuser.func)
    if joined is None or joined.name != "core.concat" or len(joined.operands) != 2:
        return members
    if joined.operands[0] is not product.result or joined.attrs["axis"] not in (2, -1):
        return members
    return _through(fuser, {*members, joined}, joined.operands[1], "nn.rope")


def _through(fuser: Fuser, members: set[Op], value: Value, name: str) -> set[Op]:
    """`members` with views, one op of a name with two operands or more, and views in front."""
    members = _views(fuser, members, value)
    op = _source(members, value)
    if op is None or op.name != name or len(op.operands) < 2 or not _is_ours(fuser, members, op):
        return members
    return _views(fuser, {*members, op}, op.operands[0])


def _views(fuser: Fuser, members: set[Op], value: Value) -> set[Op]:
    """`members` with the reshapes and slices of rows that make `value`, if only they read them."""
    found = set(members)
    while (op := value.producer) is not None and _is_ours(fuser, found, op):
        is_slice = op.name == "core.slice" and op.attrs["step"] == 1 and op.attrs["axis"] != 0
        if op.name != "core.reshape" and not is_slice:
            break
        found.add(op)
        value = op.operands[0]
    return found


def _source(members: set[Op], value: Value) -> Op | None:
    """The op behind the views that are members."""
    while (op := value.producer) is not None and op in members:
        value = op.operands[0]
    return value.producer


def _is_ours(fuser: Fuser, members: set[Op], op: Op) -> bool:
    free = op.body is None and op not in members
    return free and not any(fuser.func.is_result(r) or set(r.users) - members for r in op.results)


def _may_join(fuser: Fuser, members: set[Op], op: Op | None, parts: int) -> bool:
    if op is None or op.name != "core.concat" or len(op.operands) != parts:
        return False
    is_head = op.attrs["axis"] in (2, -1) and shape_of(op.result)[1:2] == (1,)
    return is_head and _is_ours(fuser, members, op)
