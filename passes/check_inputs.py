"""Inputs for the translation check: prompts, parameters, and the arrays of a step."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from inferc.errors import CompileError
from inferc.ir.core import Func, Module, Op
from inferc.ir.interp import run
from inferc.ir.ops.serve import pools_of_keys
from inferc.ir.types import CacheType, Memory, TensorType, Type, numpy_dtype

Array = np.ndarray[Any, np.dtype[Any]]
PAGE_TOKENS = 4  # page size of caches that have none yet
SMALL_MODEL_ELEMENTS = 20_000_000
KEPT_PARAMETER_BYTES = 1 << 30
LONGEST_PROMPT = 64 + 3


@dataclass(frozen=True)
class Prompts:
    """Token ids of sequences that run together."""

    name: str
    ids: tuple[Array, ...]


def canonical_prompts(module: Module) -> list[Prompts]:
    """Corners of the ranges: a small batch; if the model is small, also one token, a ragged batch.

    The ragged batch goes three tokens beyond every window and page of at most 64 tokens.
    """
    vocabulary = _vocabulary(module)
    lengths: list[tuple[int, ...]] = [(5, 5)]
    if is_small(module):
        limits = [limit for limit in _limits(module) if limit + 3 <= LONGEST_PROMPT]
        lengths += [(1,), (1, 7, max(limits, default=2 * PAGE_TOKENS) + 3)]
    rng = np.random.default_rng(7)
    return [
        Prompts(
            "+".join(map(str, each)) + " tokens",
            tuple(rng.integers(0, vocabulary, n) for n in each),
        )
        for each in lengths
    ]


def all_ops(module: Module) -> Iterator[Op]:
    """Ops of all functions, those in bodies of groups too."""
    for func in module:
        for op in func.ops:
            yield op
            yield from op.body.ops if op.body is not None else ()


def _vocabulary(module: Module) -> int:
    for op in all_ops(module):
        if op.name == "core.embedding":
            table = op.operands[0].type
            assert isinstance(table, TensorType) and isinstance(table.shape[0], int)
            return table.shape[0]
    raise CompileError("The module looks no token up (no core.embedding): there are no logits.")


def _limits(module: Module) -> Iterator[int]:
    for func in module:
        for arg in func.args:
            if isinstance(arg.type, CacheType) and arg.type.page_tokens is not None:
                yield arg.type.page_tokens
    for op in all_ops(module):
        window = op.attrs.get("window")
        if isinstance(window, int):
            yield window


def is_small(module: Module) -> bool:
    """Whether the model has so few parameters that thorough checks take no time."""
    sizes = {
        str(op.attrs["name"]): op.result.type.elements
        for op in all_ops(module)
        if op.name == "param" and isinstance(op.result.type, TensorType)
    }
    return sum(s for s in sizes.values() if isinstance(s, int)) <= SMALL_MODEL_ELEMENTS


@dataclass
class RandomParams:
    """Parameters drawn by name and type, the same in every process.

    Matrices keep the size of activations; vectors scatter around 0.5, so that a norm weight and a
    bias both matter; integers are an order of columns. What fits into `kept_bytes` is kept, the
    rest is drawn again when it is read.
    """

    module: Module
    precision: str = "f32"
    kept_bytes: int = KEPT_PARAMETER_BYTES
    _kept: dict[str, Array] = field(default_factory=dict)

    def __call__(self, name: str, type_: Type) -> Array:
        """The parameter; one that a function `@pack/<name>` yields is computed by it."""
        if name in self._kept:
            return self._kept[name]
        pack = self.module.funcs.get(f"pack/{name}")
        if pack is None:
            value = _draw(name, type_)
        else:
            value = run(pack, [], self, precision=self.precision)[0]
        if value.nbytes <= self.kept_bytes:
            self.kept_bytes -= value.nbytes
            self._kept[name] = value
        return value


def _draw(name: str, type_: Type) -> Array:
    assert isinstance(type_, TensorType)
    shape = tuple(int(s) for s in type_.shape)  # type: ignore[arg-type]
    seed = int.from_bytes(hashlib.sha256(f"{name}:{shape}".encode()).digest()[:8], "little")
    generator = np.random.Generator(np.random.SFC64(seed))
    if type_.dtype in ("i32", "i64") and len(shape) == 1:
        return generator.permutation(shape[0]).astype(numpy_dtype(type_.dtype))
    values = generator.random(shape, np.float32)
    values -= np.float32(0.5)
    if len(shape) > 1:
        values *= np.float32((12 / shape[-1]) ** 0.5)  # keeps the variance of what it multiplies
        return values
    return values * 2 + np.float32(0.5)


class PagedBatch:
    """Sequences with pages, caches and states, fed step by step to functions of the serve stage."""

    def __init__(self, func: Func, prompts: Prompts, precision: str) -> None:
        self.ids, self.done = prompts.ids, [0] * len(prompts.ids)
        types = [a.type for a in func.args if isinstance(a.type, CacheType)]
        self.page_tokens = (types[0].page_tokens if types else None) or PAGE_TOKENS
        columns = max(-(-len(ids) // self.page_tokens) for ids in self.ids)
        count = columns * len(self.ids) + 1
        order = np.random.default_rng(3).permutation(count)  # pages lie anywhere
        self.tables = order[:-1].reshape(len(self.ids), columns)
        self.state_slots = np.random.default_rng(4).permutation(len(self.ids))
        dtype = numpy_dtype(precision)
        memory = [a.type for a in func.args if isinstance(a.type, Memory)]
        self.caches = [
            self._pools(t, count, dtype)
            if isinstance(t, CacheType)
            else np.full((len(self.ids), *t.shape), np.nan, dtype)
            for t in memory
        ]

    def _pools(self, type_: CacheType, pages: int, dtype: np.dtype[Any]) -> tuple[Array, Array]:
        # Not-a-number in unwritten slots: reading one spoils the logits.
        k = (pages, type_.kv_heads, type_.k_dim, self.page_tokens)
        v = (pages, type_.kv_heads, self.page_tokens, type_.v_dim)
        if type_.v_in_k:
            return pools_of_keys(np.full(k, np.nan, dtype), type_.v_dim)
        return np.full(k, np.nan, dtype), np.full(v, np.nan, dtype)

    def inputs(self, func: Func, rows: Sequence[int], new: Sequence[int]) -> list[Any]:
        """Arguments of `func` for the next `new` tokens of the sequences `rows`."""
        starts = [self.done[r] for r in rows]
        stops = [start + n for start, n in zip(starts, new, strict=True)]
        spans = list(zip(rows, starts, stops, strict=True))
        positions = np.concatenate([np.arange(a, b) for _, a, b in spans])
        pages = np.concatenate(
            [self.tables[r][np.arange(a, b) // self.page_tokens] for r, a, b in spans]
        )
        values: dict[str, Array] = {
            "ids": np.concatenate([self.ids[r][a:b] for r, a, b in spans]),
            "positions": positions,
            "slots": pages * self.page_tokens + positions % self.page_tokens,
            "sequence_starts": np.cumsum([0, *new]),
            "context_lengths": np.array(stops),
            "block_tables": self.tables[list(rows)],
            "logit_indices": np.arange(sum(new)),
            "state_slots": self.state_slots[list(rows)],
        }
        caches = iter(self.caches)
        return [
            next(caches)
            if isinstance(arg.type, Memory)
            else values[arg.hint].astype(numpy_dtype(arg.type.dtype))
            for arg in func.args
        ]

    def commit(self, rows: Sequence[int], new: Sequence[int], caches: list[Any]) -> None:
        """Keep the caches that a step returned."""
        self.caches = caches
        for r, n in zip(rows, new, strict=True):
            self.done[r] += n
