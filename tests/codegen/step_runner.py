"""Runs a planned module as a compiled step and by the interpreter, on the same random inputs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from inferc.codegen.cache import Cache, default_root
from inferc.codegen.kernel import KernelOptions
from inferc.codegen.library import Generated, generate, write_library
from inferc.codegen.pack_weights import write_weights
from inferc.codegen.select import SelectKernels
from inferc.codegen.toolchain import find_compiler
from inferc.ir.blocks import FORMATS, dequantize
from inferc.ir.blocks_encode import random_blocks
from inferc.ir.core import Module
from inferc.ir.interp import run
from inferc.ir.ops.serve import pools_of_keys
from inferc.ir.types import CacheType, TensorType, numpy_dtype
from inferc.passes.manager import run_passes
from inferc.passes.plan_memory import PlanMemory
from inferc.runtime.executors.step_library import StepArgs

THREADS = 2
ALIGNMENT = 64


def aligned(nbytes: int) -> np.ndarray:
    """Zeroed bytes that begin at a multiple of 64."""
    whole = np.zeros(nbytes + ALIGNMENT, np.uint8)
    start = -whole.ctypes.data % ALIGNMENT
    return whole[start : start + nbytes]


@dataclass(frozen=True)
class Batch:
    """One step: new tokens of each sequence, what was cached before, rows to give logits of."""

    ids: np.ndarray
    positions: np.ndarray
    slots: np.ndarray
    starts: np.ndarray
    contexts: np.ndarray
    tables: np.ndarray
    logit_rows: np.ndarray

    def arrays(self) -> list[np.ndarray]:
        return [
            self.ids, self.positions, self.slots, self.starts, self.contexts, self.tables,
            self.logit_rows,
        ]  # fmt: skip


def make_batch(
    new: Sequence[int], cached: Sequence[int], tables: np.ndarray, page: int, ids: Sequence[int],
    logit_rows: Sequence[int] | None = None,
) -> Batch:  # fmt: skip
    """A batch of `new[r]` tokens after `cached[r]` tokens of each sequence."""
    positions = np.concatenate([np.arange(c, c + n) for n, c in zip(new, cached, strict=True)])
    owner = np.repeat(np.arange(len(new)), new)
    slots = tables[owner, positions // page] * page + positions % page
    starts = np.concatenate([[0], np.cumsum(new)])
    contexts = np.array(new) + np.array(cached)
    rows = starts[1:] - 1 if logit_rows is None else np.array(logit_rows)
    as_int = (np.ascontiguousarray(a, np.int32) for a in (ids, positions, slots, starts, contexts))
    return Batch(*as_int, np.ascontiguousarray(tables, np.int32), rows.astype(np.int32))


def random_params(module: Module, seed: int = 0) -> dict[str, np.ndarray]:
    """Stored values of all original parameters: raw rows for block formats."""
    rng = np.random.default_rng(seed)
    packs = {n.removeprefix("pack/") for n in module.funcs if n.startswith("pack/")}
    out: dict[str, np.ndarray] = {}
    for func in module:
        for name, op in func.params().items():
            type_ = op.result.type
            assert isinstance(type_, TensorType)
            if name in packs or name in out:
                continue
            shape = tuple(int(s) for s in type_.shape)
            if type_.is_block:
                out[name] = random_blocks(type_.dtype, shape[0], shape[1], rng)
            else:
                values = rng.standard_normal(shape) * (0.1 if len(shape) > 1 else 0.2)
                values += len(shape) == 1
                out[name] = values.astype(numpy_dtype(type_.dtype))
    return out


def reference_params(module: Module, stored: Mapping[str, np.ndarray]) -> Callable:
    """Parameters as the interpreter wants them, pack functions evaluated."""

    def original(name: str, type_: TensorType) -> np.ndarray:
        array = stored[name]
        if type_.is_block:
            return dequantize(type_.dtype, array)
        return array.astype(np.float32)

    def value(name: str, type_: TensorType) -> np.ndarray:
        func = module.funcs.get(f"pack/{name}")
        return original(name, type_) if func is None else run(func, [], original)[0]

    return value


class Compiled:
    """A step library with weights, pools and an arena, called like the runtime does."""

    def __init__(
        self, module: Module, stored: Mapping[str, np.ndarray], folder: Path, pages: int, *,
        target: str = "cpu:native", compute: str = "auto", tvm: bool = True, threads: int = THREADS,
        prefill_precision: str = "auto",
    ) -> None:  # fmt: skip
        self.module = module
        select = SelectKernels(target, compute, tvm, prefill_precision=prefill_precision)
        run_passes(module, [select, PlanMemory()], given={"fused", "kv-planned"})
        self.options: KernelOptions = select.options()
        self.generated: Generated = generate(module, self.options)
        compiler, cache = find_compiler(), Cache(default_root())
        files = write_library(self.generated, folder, compiler, cache, lambda *a: None)
        self.library = ctypes.CDLL(str(files["step.so"]))
        self.library.inferc_pool_create.restype = ctypes.c_void_p
        self.pool = ctypes.c_void_p(self.library.inferc_pool_create(threads))
        self._load_weights(stored, folder)
        self._make_caches(pages)
        self.arena = aligned(self.generated.memory.arena_bytes)

    def _load_weights(self, stored: Mapping[str, np.ndarray], folder: Path) -> None:
        path = folder / "packed.safetensors"
        offsets = write_weights(
            path, self.generated.weights, self.module, lambda n: stored[n], lambda n: None,
            lambda *a: None,
        )  # fmt: skip
        raw = np.fromfile(path, np.uint8)
        self.weights = []
        for item, offset in zip(self.generated.weights.items, offsets, strict=True):
            copy = aligned(item.nbytes)
            copy[:] = raw[offset : offset + item.nbytes]
            self.weights.append(copy)
        self.weight_pointers = (ctypes.c_void_p * len(self.weights))(
            *[w.ctypes.data for w in self.weights]
        )

    def _make_caches(self, pages: int) -> None:
        self.pools: list[tuple[np.ndarray, np.ndarray]] = []
        for arg in self.module.funcs["prefill"].args:
            if isinstance(arg.type, CacheType):
                t = arg.type
                assert t.page_tokens is not None
                dtype = ml_dtypes.bfloat16 if t.dtype == "bf16" else numpy_dtype(t.dtype)
                shapes = (
                    (pages, t.kv_heads, t.k_dim, t.page_tokens),
                    (pages, t.kv_heads, t.page_tokens, t.v_dim),
                )
                sizes = [int(np.prod(s)) * np.dtype(dtype).itemsize for s in shapes]
                k, v = (
                    aligned(n).view(dtype).reshape(s) for n, s in zip(sizes, shapes, strict=True)
                )
                self.pools.append(pools_of_keys(k, t.v_dim) if t.v_in_k else (k, v))
        flat = [p.ctypes.data for pair in self.pools for p in pair]
        self.cache_pointers = (ctypes.c_void_p * len(flat))(*flat)

    @property
    def vocab(self) -> int:
        return int(self.module.funcs["prefill"].results[0].type.shape[1])

    def step(
        self, phase: str, batch: Batch, profile_ns: np.ndarray | None = None,
        greedy: np.ndarray | None = None, greedy_end: int = 0,
    ) -> np.ndarray:  # fmt: skip
        """Run a step; returns the logits."""
        logits = np.full((len(batch.logit_rows), self.vocab), np.nan, np.float32)
        args = StepArgs(
            len(batch.ids), len(batch.contexts), len(batch.logit_rows), batch.tables.shape[1],
            *[a.ctypes.data for a in batch.arrays()],
            ctypes.cast(self.weight_pointers, ctypes.c_void_p),
            ctypes.cast(self.cache_pointers, ctypes.c_void_p),
            self.arena.ctypes.data, logits.ctypes.data,
        )  # fmt: skip
        if profile_ns is not None:
            args.profile_ns = profile_ns.ctypes.data
        if greedy is not None:
            args.greedy_ids, args.greedy_end = greedy.ctypes.data, greedy_end
        self.arena[:] = 0xFF  # NaN: nothing may be read before it is written
        code = getattr(self.library, f"inferc_step_{phase}")(self.pool, ctypes.byref(args))
        assert code == 0, code
        return logits

    def close(self) -> None:
        self.library.inferc_pool_destroy(self.pool)


def interpret(
    module: Module, phase: str, batch: Batch, caches: list, stored: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, list]:
    """The same step by the interpreter; returns logits and the new caches."""
    params = reference_params(module, stored)
    logits, *new = run(module.funcs[phase], [*batch.arrays(), *caches], params)
    return logits, new


def block_rows(dtype: str, elements: int) -> int:
    """Bytes of a row of a block format."""
    return FORMATS[dtype].row_bytes(elements)
