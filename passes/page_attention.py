"""Let attention read keys and values of earlier tokens from pages.

```
%a = nn.attention(%q, %k, %v) {..}      %kv = serve.kv_append(%kv_0, %k, %v, %slots)
                                   ->   %a = serve.paged_attention(%q, %kv, %positions, ..) {..}
```

One cache per pair (k, v) of values: attention ops that read the same pair share a cache. Where the
values are the first components of the keys they are not stored a second time. Caches are arguments
and results of the function. Does not fire for attention that is not causal or has a mask
of its own: the token-parallel analysis refuses such a graph by name.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferc.ir.core import Func, Module, Op, Value
from inferc.ir.rewrite import Rewriter
from inferc.ir.types import CacheType
from inferc.passes.analysis.token_parallel import attention_refusal, mixing_error, shape_of
from inferc.passes.base import Pass, PassContext
from inferc.passes.rebuild import step_funcs
from inferc.passes.step_arguments import step_argument
from inferc.passes.unbatch import replace_by_rows, rows_of, unbatched

_Pair = tuple[Value, Value]
_ARGUMENTS = ("slots", "sequence_starts", "context_lengths", "block_tables")


@dataclass(frozen=True)
class PageAttention(Pass):
    """nn.attention becomes serve.kv_append and serve.paged_attention; caches become arguments."""

    name = "page-attention"
    requires = frozenset({"flat"})
    ensures = frozenset({"paged"})

    def run(self, module: Module, context: PassContext) -> None:
        """Rewrite all attention ops of the step functions."""
        for func in step_funcs(module):
            ops = [op for op in func.ops if op.name == "nn.attention"]
            if not ops:
                continue
            for op in ops:
                refusal = attention_refusal(op)
                if refusal is not None:
                    raise mixing_error(op, refusal)
            rewriter = context.rewriter(func)
            rewriter.spend()  # all or nothing: the caches become arguments and results
            paging = _Paging(func, rewriter, ops)
            for op in ops:
                paging.rewrite(op)
                context.hit("page-attention", func)
            paging.rewriter.set_results(*func.results, *paging.appended.values())


class _Paging:
    def __init__(self, func: Func, rewriter: Rewriter, ops: list[Op]) -> None:
        self.func, self.rewriter = func, rewriter
        self.step = {name: step_argument(func, name) for name in _ARGUMENTS}
        # Keys and values as they are before any rewrite: they may be results of attention.
        self.pair = {op: (rows_of(op.operands[1]), rows_of(op.operands[2])) for op in ops}
        self.windows: dict[_Pair, list[int | None]] = {}
        self.appended: dict[_Pair, Value] = {}
        for op in ops:
            limits = [w for w in (op.attrs["window"], op.attrs["chunk"]) if isinstance(w, int)]
            self.windows.setdefault(self.pair[op], []).append(min(limits, default=None))

    def rewrite(self, op: Op) -> None:
        q = unbatched(self.rewriter, op, op.operands[0])
        kv = self.appended.get(self.pair[op]) or self.append(op)
        attrs = {k: v for k, v in op.attrs.items() if k != "causal"}
        attended = self.rewriter.insert(
            "serve.paged_attention", q, kv, self.func.args[1], self.step["sequence_starts"],
            self.step["context_lengths"], self.step["block_tables"], *op.operands[3:], before=op,
            of=op.loc, hint=op.result.hint, **attrs,
        ).result  # fmt: skip
        values = self.pair[op][1]
        replace_by_rows(self.rewriter, op, attended)
        if values.producer in self.func.ops and not values.uses and in_keys(*self.pair[op]):
            self.rewriter.erase(values.producer)

    def append(self, op: Op) -> Value:
        name, stored = "serve.kv_append", op.operands[1:3]
        if in_keys(*self.pair[op]):
            name, stored = "serve.k_append", op.operands[1:2]
        rows = [unbatched(self.rewriter, op, operand) for operand in stored]
        cache = self.func.add_arg(f"kv_{len(self.appended)}", self.cache_type(op))
        made = self.rewriter.insert(
            name, cache, *rows, self.step["slots"], before=op, of=op.loc, hint="kv"
        )
        self.appended[self.pair[op]] = made.result
        return made.result

    def cache_type(self, op: Op) -> CacheType:
        (*_, heads, k_dim), v_dim = shape_of(op.operands[1]), shape_of(op.operands[2])[-1]
        assert isinstance(heads, int) and isinstance(k_dim, int) and isinstance(v_dim, int)
        windows = [w for w in self.windows[self.pair[op]] if w is not None]
        whole = len(windows) < len(self.windows[self.pair[op]])
        window = None if whole else max(windows)
        return CacheType(heads, k_dim, v_dim, "f32", None, window, in_keys(*self.pair[op]))


def in_keys(k: Value, v: Value) -> bool:
    """Whether the values are the first components of the keys."""
    part = v.producer
    if part is None or part.name != "core.slice" or part.operands[0] is not k:
        return False
    is_last = part.attrs["axis"] in (-1, len(shape_of(k)) - 1)
    return is_last and part.attrs["start"] == 0 and part.attrs["step"] == 1
