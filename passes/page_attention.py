"""Let attention read keys and values of earlier tokens from pages.

```
%a = nn.attention(%q, %k, %v) {..}      %kv = serve.kv_append(%kv_0, %k, %v, %slots)
                                   ->   %a = serve.paged_attention(%q, %kv, %positions, ..) {..}
```

One cache per pair (k, v) of values: attention ops that read the same pair share a cache. Caches are
arguments and results of the function. Does not fire for attention that is not causal or has a mask
of its own: the token-parallel analysis refuses such a graph by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from inferc.ir.core import Func, Module, Op, Value
from inferc.ir.dims import Size, Symbol, sym
from inferc.ir.rewrite import Rewriter
from inferc.ir.types import CacheType, TensorType
from inferc.passes.analysis.token_parallel import attention_refusal, mixing_error, shape_of
from inferc.passes.base import Pass, PassContext
from inferc.passes.rebuild import step_funcs

T, R, P = sym("T"), sym("R"), sym("P")
_Pair = tuple[Value, Value]
_ARGUMENTS: Mapping[str, tuple[Size, ...]] = {
    "slots": (T,),
    "sequence_starts": (R + 1,),
    "context_lengths": (R,),
    "block_tables": (R, P),
}


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
        length = func.symbols["T"].high
        func.symbols["R"] = Symbol("R", 1, length)
        func.symbols["P"] = Symbol("P", 1, length)
        self.step = {n: func.add_arg(n, TensorType(s, "i32")) for n, s in _ARGUMENTS.items()}
        # Keys and values as they are before any rewrite: they may be results of attention.
        self.pair = {op: (_rows_of(op.operands[1]), _rows_of(op.operands[2])) for op in ops}
        self.windows: dict[_Pair, list[int | None]] = {}
        self.appended: dict[_Pair, Value] = {}
        for op in ops:
            limits = [w for w in (op.attrs["window"], op.attrs["chunk"]) if isinstance(w, int)]
            self.windows.setdefault(self.pair[op], []).append(min(limits, default=None))

    def rewrite(self, op: Op) -> None:
        q = self.rows(op, op.operands[0])
        kv = self.appended.get(self.pair[op]) or self.append(op)
        attrs = {k: v for k, v in op.attrs.items() if k != "causal"}
        attended = self.rewriter.insert(
            "serve.paged_attention", q, kv, self.func.args[1], self.step["sequence_starts"],
            self.step["context_lengths"], self.step["block_tables"], *op.operands[3:], before=op,
            of=op.loc, hint=op.result.hint, **attrs,
        ).result  # fmt: skip
        for user in op.result.users:
            if user.name == "core.reshape" and user.result.type == attended.type:
                self.rewriter.replace_value(user.result, attended)
                self.rewriter.erase(user)
        shape, operands = shape_of(op.result), op.operands
        batch = self.rewriter.insert("core.reshape", attended, before=op, of=[op], shape=shape)
        self.rewriter.replace_value(op.result, batch.result)
        self.rewriter.erase(op)
        self.drop_reshapes((batch.result, *operands))

    def drop_reshapes(self, values: tuple[Value, ...]) -> None:
        for value in dict.fromkeys(values):
            unread = not value.uses and not self.func.is_result(value)
            if unread and value.producer is not None and value.producer.name == "core.reshape":
                self.rewriter.erase(value.producer)

    def append(self, op: Op) -> Value:
        k, v = self.rows(op, op.operands[1]), self.rows(op, op.operands[2])
        cache = self.func.add_arg(f"kv_{len(self.appended)}", self.cache_type(op))
        made = self.rewriter.insert(
            "serve.kv_append", cache, k, v, self.step["slots"], before=op, of=op.loc, hint="kv"
        )
        self.appended[self.pair[op]] = made.result
        return made.result

    def cache_type(self, op: Op) -> CacheType:
        (*_, heads, k_dim), v_dim = shape_of(op.operands[1]), shape_of(op.operands[2])[-1]
        assert isinstance(heads, int) and isinstance(k_dim, int) and isinstance(v_dim, int)
        windows = [w for w in self.windows[self.pair[op]] if w is not None]
        whole = len(windows) < len(self.windows[self.pair[op]])
        return CacheType(heads, k_dim, v_dim, "f32", window=None if whole else max(windows))

    def rows(self, op: Op, value: Value) -> Value:
        """An operand `[1, T, ..]` of attention as `[T, ..]`."""
        row = _rows_of(value)
        if row is not value:
            return row
        shape = shape_of(value)[1:]
        return self.rewriter.insert("core.reshape", value, before=op, of=[op], shape=shape).result


def _rows_of(value: Value) -> Value:
    """The `[T, ..]` that `value` is a reshape to `[1, T, ..]` of; else `value` itself."""
    op = value.producer
    if op is not None and op.name == "core.reshape":
        if shape_of(op.operands[0]) == shape_of(value)[1:]:
            return op.operands[0]
    return value
