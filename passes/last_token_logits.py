"""Compute logits only for the rows that ask for them.

```
%a = serve.paged_attention(..) : [T, 4, 16]       %a = serve.paged_attention(..) : [T, 4, 16]
%o = core.linear(%a2, %wo) : [T, 64]         ->   %a_l = core.gather_rows(%a, %logit_indices)
%logits = core.linear(..) : [T, V]                everything after it on L rows
```

Rows are gathered as early as legal: right after the last op that mixes positions. What follows
acts on each token alone, so the rows that nobody asks for need not exist: the rest of the last
layer, the final norm and the head run on L rows. Does not touch an op whose result a cache or
attention reads.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferc.ir.core import Func, Module, Op, Value
from inferc.ir.dims import Dim, Size
from inferc.ir.ops.recurrent import SERVED
from inferc.ir.rewrite import Rewriter
from inferc.passes.analysis.token_parallel import shape_of
from inferc.passes.base import Pass, PassContext
from inferc.passes.fusion import bytes_moved
from inferc.passes.rebuild import step_funcs, substitute_attr
from inferc.passes.step_arguments import L, step_argument

_MIXING = ("serve.kv_append", "serve.k_append", "serve.paged_attention", *SERVED)


@dataclass(frozen=True)
class LastTokenLogits(Pass):
    """Gathers the rows `logit_indices` right after the last op that mixes positions."""

    name = "last-token-logits"
    requires = frozenset({"paged"})
    ensures = frozenset({"logits-last"})

    def run(self, module: Module, context: PassContext) -> None:
        """Rewrite the step functions whose logits still have one row a token."""
        for func in step_funcs(module):
            rows = shape_of(func.args[0])[0]
            if shape_of(func.results[0])[0] == rows and isinstance(rows, Dim):
                _narrow(func, rows, context)


def _narrow(func: Func, rows: Dim, context: PassContext) -> None:
    rewriter = context.rewriter(func)
    rewriter.spend()
    indices = step_argument(func, "logit_indices")
    old = _after_mixing(func, rows)
    before = bytes_moved(old)
    logits = func.results[0]
    new = _copy_on_rows(rewriter, old, rows, indices)
    if logits not in new:
        last = func.ops[-1]
        new[logits] = rewriter.insert(
            "core.gather_rows", logits, indices, before=None, of=[logits.producer or last]
        ).result
    rewriter.set_results(new[logits], *func.results[1:])
    for op in reversed(old):
        rewriter.erase(op)
    made = dict.fromkeys(v.producer for v in new.values() if v.producer is not None)
    after = bytes_moved(made)
    context.hit("last-token-logits", func, before - after)


def _after_mixing(func: Func, rows: Dim) -> list[Op]:
    """Ops on all rows whose results only reach the logits, in order."""
    found: set[Op] = set()
    for op in reversed(func.ops):
        if op.name in _MIXING or any(shape_of(r)[:1] != (rows,) for r in op.results):
            continue
        others = func.results[1:]
        kept = any(any(r is o for o in others) for r in op.results)
        if not kept and all(user in found for r in op.results for user in r.users):
            found.add(op)
    return [op for op in func.ops if op in found]


def _copy_on_rows(
    rewriter: Rewriter, ops: list[Op], rows: Dim, indices: Value
) -> dict[Value, Value]:
    (name,) = rows.symbols()
    sizes: dict[str, Size] = {name: L}
    new: dict[Value, Value] = {}

    def narrow(value: Value, op: Op) -> Value:
        if value not in new and shape_of(value)[:1] == (rows,):
            hint = f"{value.hint}_rows"
            new[value] = rewriter.insert(
                "core.gather_rows", value, indices, before=op, of=[op], hint=hint
            ).result
        return new.get(value, value)

    for op in ops:
        operands = [narrow(v, op) for v in op.operands]
        attrs = {k: substitute_attr(v, sizes) for k, v in op.attrs.items()}
        hints = [r.hint for r in op.results]
        made = rewriter.insert(op.name, *operands, before=op, of=op.loc, hint=hints, **attrs)
        new.update(zip(op.results, made.results, strict=True))
    return new
