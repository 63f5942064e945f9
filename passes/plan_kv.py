"""Choose how keys and values of past tokens are stored: page size and dtype of every cache.

```
%kv_0: cache[2, 16, 16, f32]   ->   %kv_0: cache[2, 16, 16, bf16, page=32]
```

All caches of a step share one page table, so they share the page size; a page holds the same tokens
in every cache, and a block of memory to the runtime is one page of each. Refuses a page size that
the attention kernels cannot walk.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from inferc.errors import CompileError
from inferc.ir.core import Func, Module
from inferc.ir.dims import Symbol
from inferc.ir.types import CacheType, Type
from inferc.passes.base import Pass, PassContext
from inferc.passes.rebuild import rebuild, step_funcs

DTYPES = ("f32", "bf16", "f16", "f8e4m3", "i8")


@dataclass(frozen=True)
class PlanKv(Pass):
    """Gives every cache its page size and dtype.

    Attributes:
        page_tokens: tokens of a page; a multiple of 16, at most 64, so that a key block of the
            attention kernels is one page.
        dtype: f32, bf16, f16; f8e4m3, to which numbers are rounded as they are, without scales,
            and which has none beyond 448; or i8 with a scale for each token and KV head, of K and
            of V.
    """

    name = "plan-kv"
    requires = frozenset({"paged", "phases"})
    ensures = frozenset({"kv-planned"})

    page_tokens: int = 32
    dtype: str = "f32"

    def run(self, module: Module, context: PassContext) -> None:
        """Rebuild the step functions with the planned cache types."""
        self._check()
        for func in step_funcs(module):
            if all(self._planned(a.type) == a.type for a in func.args):
                continue
            context.rewriter(func).spend()
            module.add(rebuild(func, func.name, self._symbols(func), retype=self._planned))
            for arg in func.args:
                if isinstance(arg.type, CacheType):
                    context.hit("plan-kv")

    def _check(self) -> None:
        if self.page_tokens not in (16, 32, 48, 64):
            raise CompileError(
                f"KV pages of {self.page_tokens} tokens are not supported: choose 16, 32, 48 or 64."
            )
        if self.dtype not in DTYPES:
            raise CompileError(
                f"KV dtype {self.dtype!r} is not supported: choose one of {', '.join(DTYPES)}."
            )

    def _planned(self, type_: Type) -> Type:
        if isinstance(type_, CacheType):
            return replace(type_, page_tokens=self.page_tokens, dtype=self.dtype)
        return type_

    def _symbols(self, func: Func) -> dict[str, Symbol]:
        """The symbols, with P in pages: until now it was bounded by tokens."""
        cache = next((a.type for a in func.args if isinstance(a.type, CacheType)), None)
        symbols = dict(func.symbols)
        if cache is not None and cache.page_tokens is None and "P" in symbols:
            pages = -(-symbols["P"].high // self.page_tokens)
            symbols["P"] = Symbol("P", 1, max(pages, 1))
        return symbols


@dataclass(frozen=True)
class CachePlan:
    """One cache of the plan."""

    name: str
    kv_heads: int
    k_dim: int
    v_dim: int
    v_in_k: bool
    window_tokens: int | None
    bytes_per_token: int


@dataclass(frozen=True)
class KvPlan:
    """What the runtime must know of the caches, and the arithmetic of a budget."""

    page_tokens: int
    dtype: str
    caches: tuple[CachePlan, ...]

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token takes in all caches."""
        return sum(c.bytes_per_token for c in self.caches)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page in all caches."""
        return self.page_tokens * self.bytes_per_token

    def pages_for(self, budget_bytes: int) -> int:
        """Whole pages that fit into a budget."""
        return budget_bytes // self.page_bytes if self.page_bytes else 0


def kv_plan(func: Func) -> KvPlan:
    """The plan that a step function carries in its types. Raises ValueError before plan-kv.

    Without caches (no attention at all) pages hold nothing, and `page_tokens` is the default.
    """
    caches: list[CachePlan] = []
    pages: set[int | None] = set()
    dtypes: set[str] = set()
    for arg in func.args:
        if isinstance(arg.type, CacheType):
            t = arg.type
            caches.append(
                CachePlan(
                    arg.hint, t.kv_heads, t.k_dim, t.v_dim, t.v_in_k, t.window, t.bytes_per_token
                )
            )  # fmt: skip
            pages.add(t.page_tokens)
            dtypes.add(t.dtype)
    if not caches:
        return KvPlan(PlanKv.page_tokens, PlanKv.dtype, ())
    if len(pages) != 1 or len(dtypes) != 1 or None in pages:
        raise ValueError(
            f"@{func.name}: caches have page sizes {pages} and dtypes {dtypes}; run plan-kv first"
        )
    page_tokens = pages.pop()
    assert page_tokens is not None
    return KvPlan(page_tokens, dtypes.pop(), tuple(caches))
