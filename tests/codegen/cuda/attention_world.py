"""Sequences in a paged cache, for CUDA attention under emulation and its float64 reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from cuda_runner import CudaUnit, StepArgs, compile_units

from inferc.ir.card import card
from inferc.ir.ops.serve import pools_of_keys

DTYPES = {
    "f32": np.dtype(np.float32), "bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype("f2"),
    "f8e4m3": np.dtype(ml_dtypes.float8_e4m3fn), "i8": np.dtype(np.int8),
}  # fmt: skip
MULTIPLIED = {"bf16": "bf16", "f16": "f16", "f8e4m3": "f16", "i8": "bf16"}
"""What tensor cores multiply pages of a type as, and round queries and shares to."""
ROUNDING = {"f32": 0.0, "bf16": 2.0**-8, "f16": 2.0**-11, "f8e4m3": 2.0**-4, "i8": 0.0}
"""Largest relative error of what is rounded to a type."""
STEP_TOKENS, TABLE_PAGES = 128, 70
Chunk = tuple[int, int, int]  # sequence, first new token, end of the new tokens


@dataclass(frozen=True)
class Shape:
    """One attention op; `plain` says which of the two kernels runs it."""

    heads: int = 4
    kv_heads: int = 2
    k_dim: int = 32
    v_dim: int = 32
    kv: str = "bf16"
    page: int = 32
    window: int | None = None
    chunk: int | None = None
    softcap: float | None = None
    alibi: bool = False
    sinks: bool = False
    v_in_k: bool = False
    plain: bool = False
    scale: float = 0.3

    def attrs(self) -> dict[str, object]:
        slopes = tuple(float(np.float32(s)) for s in np.linspace(0.25, 0.01, self.heads))
        return {
            "scale": self.scale, "window": self.window, "chunk": self.chunk,
            "softcap": self.softcap, "alibi": slopes if self.alibi else None,
        }  # fmt: skip

    def text(self) -> str:
        latent = ", v_in_k" if self.v_in_k else ""
        cache = f"cache[{self.kv_heads}, {self.k_dim}, {self.v_dim}, {self.kv}, page={self.page}"
        given = {k: v for k, v in self.attrs().items() if v is not None}
        attrs = ", ".join(
            f"{k} = ({', '.join(map(str, v))})" if isinstance(v, tuple) else f"{k} = {v}"
            for k, v in given.items()
        )
        sink, operand = (f", %sinks: f32[{self.heads}]", ", %sinks") if self.sinks else ("", "")
        out = f"f32[T, {self.heads}, {self.v_dim}]"
        return (
            f"func @body(%q: f32[T, {self.heads}, {self.k_dim}], %kv: {cache}{latent}],"
            f" %p: i32[T], %s: i32[R + 1], %c: i32[R], %b: i32[R, P]{sink}) -> ({out})"
            f" where T in 1..{STEP_TOKENS}, R in 1..8, P in 1..{TABLE_PAGES} {{\n"
            f"  %o = serve.paged_attention(%q, %kv, %p, %s, %c, %b{operand}) {{{attrs}}} : {out}\n"
            "  return %o\n}\n"
        )


def codes_and_scales(
    memory: np.ndarray, shape: tuple[int, ...], axis: int
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Views of a pool of i8: the codes, and the scales with 1 in place of the dims (`axis`)."""
    heads = memory.reshape(*shape[:2], -1)
    count = shape[2] * shape[3]
    scales = heads[..., count:].view(np.float32)
    return heads[..., :count].view(np.int8).reshape(shape), np.expand_dims(scales, axis)


class World:
    """Sequences whose keys and values are in pages; unwritten slots hold NaN."""

    def __init__(self, shape: Shape, lengths: Sequence[int], seed: int = 1) -> None:
        self.shape = s = shape
        self.rng = np.random.default_rng(seed)
        counts = [-(-n // s.page) for n in lengths]
        order = list(self.rng.permutation(sum(counts) + 2))
        self.pages = [[order.pop() for _ in range(count)] for count in counts]
        dtype, pages = DTYPES["f32" if s.kv == "i8" else s.kv], sum(counts) + 2
        self._shapes = (pages, s.kv_heads, s.k_dim, s.page), (pages, s.kv_heads, s.page, s.v_dim)
        k, v = (self._aligned(shape) for shape in self._shapes)
        self.q, self.written = [], [0] * len(lengths)
        self._k, self._v = [], []
        for n in lengths:
            self.q.append(self.rng.standard_normal((n, s.heads, s.k_dim), np.float32))
            self._k.append(self.rng.standard_normal((n, s.kv_heads, s.k_dim)).astype(dtype))
            self._v.append(self.rng.standard_normal((n, s.kv_heads, s.v_dim)).astype(dtype))
        self.k, self.v = k, v
        self.pools = np.array([k.ctypes.data, 0 if s.v_in_k else v.ctypes.data], np.uint64)
        self.sinks = np.linspace(-2.0, 3.0, s.heads, dtype=np.float32)

    def _aligned(self, shape: tuple[int, ...]) -> np.ndarray:
        """A pool of NaN; of i8 as bytes, with room for scales."""
        dtype = DTYPES[self.shape.kv]
        nbytes = int(np.prod(shape)) * dtype.itemsize
        if self.shape.kv == "i8":
            nbytes += int(np.prod(shape[:2])) * self.shape.page * 4
        whole = np.full(nbytes + 64, 0xFF, np.uint8)
        start = -whole.ctypes.data % 64
        memory = whole[start : start + nbytes]
        return memory if self.shape.kv == "i8" else memory.view(dtype).reshape(shape)

    def _store(self, pool: int, where: tuple[object, ...], x: np.ndarray, axis: int) -> None:
        memory = (self.k, self.v)[pool]
        if self.shape.kv != "i8":
            memory[where] = x
            return
        codes, scales = codes_and_scales(memory, self._shapes[pool], axis)
        scale = np.abs(x).max(-1, keepdims=True) / np.float32(127)
        codes[where] = np.rint(x / scale)
        scales[where] = scale

    def numbers(self) -> tuple[np.ndarray, np.ndarray]:
        """The pools in float64."""
        k, v = self.k, self.v
        if self.shape.kv == "i8":
            k, v = (
                np.multiply(*codes_and_scales(pool, shape, axis), dtype=np.float64)
                for pool, shape, axis in zip((k, v), self._shapes, (2, 3), strict=True)
            )
        k, v = k.astype(np.float64), v.astype(np.float64)
        return pools_of_keys(k, self.shape.v_dim) if self.shape.v_in_k else (k, v)

    def write(self, r: int, end: int) -> None:
        """Keys and values of the sequence up to `end` are in their pages from now on."""
        for t in range(self.written[r], end):
            page, at = self.pages[r][t // self.shape.page], t % self.shape.page
            self._store(0, (page, slice(None), slice(None), at), self._k[r][t], 2)
            if not self.shape.v_in_k:
                self._store(1, (page, slice(None), at), self._v[r][t], 3)
        self.written[r] = max(self.written[r], end)

    def _operands(self, chunks: Sequence[Chunk]) -> list[np.ndarray]:
        q = np.concatenate([self.q[r][b:e] for r, b, e in chunks])
        positions = np.concatenate([np.arange(b, e) for _, b, e in chunks]).astype(np.int32)
        starts = np.cumsum([0] + [e - b for _, b, e in chunks]).astype(np.int32)
        tables = np.full((len(chunks), TABLE_PAGES), 1 << 30, np.int32)
        for i, (r, _, _) in enumerate(chunks):
            tables[i, : len(self.pages[r])] = self.pages[r]
        return [q, positions, starts, np.array([e for _, _, e in chunks], np.int32), tables]

    def run(
        self, unit: CudaUnit, chunks: Sequence[Chunk], *, order: int = 0, split: bool = False
    ) -> list[np.ndarray]:  # fmt: skip
        """Rows of each chunk; `split`: a block a partition, else one block walks them all."""
        for r, _, end in chunks:
            self.write(r, end)
        q, positions, starts, contexts, tables = self._operands(chunks)
        context = unit.emulation.context
        context.multiprocessors, context.longest_context = 1000 * split, int(contexts.max())
        operands = [q, self.pools.ctypes.data, positions, starts, contexts, tables]
        operands += [self.sinks] if self.shape.sinks else []
        args = StepArgs(tokens=len(q), sequences=len(chunks), table_stride=TABLE_PAGES)
        (out,) = unit(operands, len(q), args=args, order=order)
        partitions_seen = bool((unit.emulation.scratch != 0xFF).any())
        assert partitions_seen == (split and int(contexts.max()) > 512)
        return [out[starts[i] : starts[i + 1]] for i in range(len(chunks))]

    def reference(self, chunks: Sequence[Chunk]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Rows of each chunk in float64, and how far the kernel's may be from them."""
        s = self.shape
        q, positions, starts, contexts, tables = self._operands(chunks)
        if not s.plain:
            q = q.astype(DTYPES[MULTIPLIED[s.kv]])
        sinks = [self.sinks] if s.sinks else []

        k, values = self.numbers()

        def attend(v: np.ndarray) -> np.ndarray:
            reference = card("serve.paged_attention").reference
            rest = (positions, starts, contexts, tables, *sinks)
            return reference(q.astype(np.float64), (k, v), *rest, **s.attrs())

        wanted = attend(values)
        rounding = 0.0 if s.plain else ROUNDING[MULTIPLIED[s.kv]]
        # A share off by d moves the output by d (v - output).
        room = rounding * (attend(np.abs(values)) + np.abs(wanted))
        room += 2e-5 * np.abs(wanted) + 5e-6
        cut = [slice(starts[i], starts[i + 1]) for i in range(len(chunks))]
        return [wanted[c] for c in cut], [room[c] for c in cut]


Units = dict[tuple[Shape, str], CudaUnit]  # by phase


def compile_shapes(
    shapes: Sequence[Shape], sm: int = 80, *, phases: Sequence[str] = ("prefill", "decode"),
    fast_prefill: bool = False,
) -> Units:  # fmt: skip
    """All shapes for both phases in one library."""
    keys = [(shape, phase) for phase in phases for shape in shapes]
    texts, each = [shape.text() for shape, _ in keys], [phase for _, phase in keys]
    made = compile_units(texts, phases=each, sm=sm, fast_prefill=fast_prefill)
    units = dict(zip(keys, made, strict=True))
    for (shape, _), unit in units.items():
        assert (unit.unit.definition.name == "attention_plain") == shape.plain
    return units
