"""Paged attention against float64; bit-equal for any chunking, batch, pages and workers."""

import ctypes
from dataclasses import dataclass

import numpy as np
import pytest
from kernel_library import ISAS, Guarded, library, pointer
from kv_pool import KINDS, Pool, widen

from inferc.codegen import workspace

P, INT, F, L = ctypes.c_void_p, ctypes.c_int32, ctypes.c_float, ctypes.c_int64


class AttentionArgs(ctypes.Structure):
    _fields_ = (
        [("q", P), ("q_stride", L), ("out", P), ("out_stride", L), ("k_pool", P), ("v_pool", P)]
        + [(n, P) for n in ("positions", "sequence_starts", "context_lengths", "block_tables")]
        + [
            (n, INT)
            for n in ("tokens", "sequences", "table_stride", "heads", "kv_heads", "k_dim", "v_dim")
        ]
        + [
            ("page_tokens", INT),
            ("scale", F),
            ("softcap", F),
            ("window", INT),
            ("chunk", INT),
            ("slopes", P),
            ("sinks", P),
            ("scratch", P),
            ("scratch_bytes", L),
        ]
    )


@dataclass(frozen=True)
class Shape:
    heads: int = 6
    kv_heads: int = 2
    k_dim: int = 64
    v_dim: int = 64
    page_tokens: int = 32
    softcap: float = 0.0
    window: int = 0
    kv: str = "f32"
    chunk: int = 0
    alibi: bool = False
    sinks: bool = False
    v_in_k: bool = False

    @property
    def scale(self):
        return self.k_dim**-0.5

    def of_heads(self, wanted, low, high):
        return np.linspace(low, high, self.heads, dtype=np.float32) if wanted else None

    @property
    def slopes(self):
        return self.of_heads(self.alibi, 0.5, 0.01)

    @property
    def sink_scores(self):
        return self.of_heads(self.sinks, -2.0, 3.0)


@dataclass
class Sequence:
    """The whole history of one sequence, as float32 and where its pages lie."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    pages: list


class World:
    """Sequences in a paged cache; unwritten slots hold NaN."""

    def __init__(self, shape: Shape, lengths, rng):
        self.shape = s = shape
        counts = [-(-n // s.page_tokens) for n in lengths]
        order = list(rng.permutation(sum(counts) + 2))
        self.k = Pool(s.kv, (len(order), s.kv_heads, s.k_dim, s.page_tokens), 2)
        self.v = Pool(s.kv, (len(order), s.kv_heads, s.page_tokens, s.v_dim), 3)
        self.sequences = []
        for n, count in zip(lengths, counts, strict=True):
            self.sequences.append(
                Sequence(
                    rng.standard_normal((n, s.heads, s.k_dim), np.float32),
                    rng.standard_normal((n, s.kv_heads, s.k_dim), np.float32),
                    rng.standard_normal((n, s.kv_heads, s.v_dim), np.float32),
                    [order.pop() for _ in range(count)],
                )
            )
            if s.v_in_k:
                self.sequences[-1].v = self.sequences[-1].k[..., : s.v_dim]

    def write(self, r, begin, end):
        s, seq = self.shape, self.sequences[r]
        for t in range(begin, end):
            page, at = seq.pages[t // s.page_tokens], t % s.page_tokens
            self.k.write((page, slice(None), slice(None), at), seq.k[t])
            self.v.write((page, slice(None), at), seq.v[t])

    def step(self, isa, pool, workers, chunks):
        """Runs rows [begin, end) of the listed sequences; returns out a chunk, and if split."""
        s, lib = self.shape, library(isa)
        for r, begin, end in chunks:
            self.write(r, begin, end)
        q = np.concatenate([self.sequences[r].q[b:e].reshape(e - b, -1) for r, b, e in chunks])
        positions = np.concatenate([np.arange(b, e) for _, b, e in chunks]).astype(np.int32)
        starts = np.cumsum([0] + [e - b for _, b, e in chunks]).astype(np.int32)
        contexts = np.array([e for _, _, e in chunks], np.int32)
        width = max(len(seq.pages) for seq in self.sequences)
        tables = np.full((len(chunks), width), 1 << 30, np.int32)
        for i, (r, _, _) in enumerate(chunks):
            tables[i, : len(self.sequences[r].pages)] = self.sequences[r].pages
        out = Guarded((len(q), s.heads * s.v_dim + 5))
        bytes_ = workspace.attention_scratch_bytes(
            s.heads, s.kv_heads, s.k_dim, s.v_dim, int(contexts.max()), workers, s.v_in_k
        )
        scratch = Guarded((bytes_,), np.uint8, 0xFF)
        slopes, sinks = s.slopes, s.sink_scores
        args = AttentionArgs(
            pointer(q), q.shape[1], pointer(out.array), out.array.shape[1],
            pointer(self.k.memory.array), None if s.v_in_k else pointer(self.v.memory.array),
            pointer(positions), pointer(starts), pointer(contexts), pointer(tables),
            len(q), len(chunks), width, s.heads, s.kv_heads, s.k_dim, s.v_dim, s.page_tokens,
            s.scale, s.softcap, s.window, s.chunk,
            None if slopes is None else pointer(slopes), None if sinks is None else pointer(sinks),
            pointer(scratch.array), bytes_,
        )  # fmt: skip
        split = lib.attention(P(pool), ctypes.byref(args), KINDS.index(s.kv))
        out.check(), scratch.check()
        assert np.isnan(out.array[:, -5:]).all()
        rows = out.array[:, :-5].reshape(len(q), s.heads, s.v_dim).copy()
        return [rows[starts[i] : starts[i + 1]] for i in range(len(chunks))], bool(split)

    def reference(self, r):
        s, seq = self.shape, self.sequences[r]
        group = s.heads // s.kv_heads
        k = np.repeat(widen(s.kv, seq.k), group, 1)
        v = k[..., : s.v_dim] if s.v_in_k else np.repeat(widen(s.kv, seq.v), group, 1)
        scores = np.einsum("ihd,jhd->hij", seq.q.astype(np.float64), k) * s.scale
        if s.softcap:
            scores = s.softcap * np.tanh(scores / s.softcap)
        i, j = np.ogrid[: len(seq.q), : len(seq.q)]
        if s.alibi:
            scores = scores + s.slopes[:, None, None].astype(np.float64) * (j - i)
        visible = (j <= i) & ((s.window == 0) | (j > i - s.window))
        if s.chunk:
            visible &= j // s.chunk == i // s.chunk
        scores = np.where(visible, scores, -np.inf)
        if s.sinks:
            column = s.sink_scores.astype(np.float64)[:, None, None]
            scores = np.concatenate([scores, np.broadcast_to(column, (*scores.shape[:2], 1))], -1)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p = (p / p.sum(-1, keepdims=True))[..., : len(v)]
        return np.einsum("hij,jhe->ihe", p, v)


@pytest.fixture(scope="module")
def pools():
    made = {}

    def get(isa, workers):
        lib = library(isa)
        lib.pool_new.restype = P
        if (isa, workers) not in made:
            made[isa, workers] = lib.pool_new(workers)
        return made[isa, workers]

    yield get
    for (isa, _), pool in made.items():
        library(isa).pool_free(P(pool))


SHAPES = [
    Shape(),
    Shape(heads=3, kv_heads=3, k_dim=80, v_dim=80, kv="bf16"),
    Shape(heads=8, kv_heads=1, k_dim=96, v_dim=100, window=40, kv="f16"),
    Shape(heads=4, kv_heads=2, k_dim=112, v_dim=48, softcap=5.0, page_tokens=16),
    Shape(heads=40, kv_heads=1, k_dim=16, v_dim=24, page_tokens=64),
    Shape(heads=4, kv_heads=1, k_dim=256, v_dim=256, window=300, kv="bf16"),
    Shape(chunk=50, kv="bf16"),
    Shape(heads=6, kv_heads=3, k_dim=16, v_dim=16, alibi=True),
    Shape(heads=8, kv_heads=2, k_dim=32, v_dim=40, sinks=True, window=33),
    Shape(heads=4, kv_heads=2, k_dim=16, v_dim=16, sinks=True, alibi=True, chunk=300, softcap=3.0),
    Shape(heads=6, kv_heads=2, k_dim=64, v_dim=40, kv="i8", window=100, page_tokens=48),
    Shape(heads=7, kv_heads=1, k_dim=16, v_dim=33, kv="i8", sinks=True, softcap=5.0),
    Shape(heads=5, kv_heads=1, k_dim=72, v_dim=56, v_in_k=True, kv="i8", alibi=True),
    Shape(heads=33, kv_heads=1, k_dim=72, v_dim=56, v_in_k=True),
    Shape(heads=4, kv_heads=1, k_dim=576, v_dim=512, v_in_k=True, kv="bf16", page_tokens=16),
    Shape(
        heads=6,
        kv_heads=2,
        k_dim=40,
        v_dim=33,
        v_in_k=True,
        kv="f16",
        window=50,
        sinks=True,
        page_tokens=64,
    ),
]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_prefill_against_float64_then_any_chunking(isa, shape, pools):
    rng = np.random.default_rng(1)
    lengths = (333, 45, 1)
    world = World(shape, lengths, rng)
    whole, _ = world.step(isa, pools(isa, 2), 2, [(r, 0, n) for r, n in enumerate(lengths)])
    for r in range(3):
        np.testing.assert_allclose(whole[r], world.reference(r), rtol=2e-5, atol=3e-6)
    for workers in (1, 3):
        again, _ = world.step(
            isa, pools(isa, workers), workers, [(r, 0, n) for r, n in enumerate(lengths)]
        )
        assert all((a == b).all() for a, b in zip(again, whole, strict=True))
    fresh = World(shape, lengths, np.random.default_rng(1))
    for begin, end in ((0, 7), (7, 64), (64, 290), (290, 331)):  # chunked, in a batch that changes
        chunks = [(0, begin, end)] + ([(1, begin, min(end, 45))] if begin < 45 else [])
        out, _ = fresh.step(isa, pools(isa, 2), 2, chunks)
        for (r, b, e), rows in zip(chunks, out, strict=True):
            assert (rows == whole[r][b:e]).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_decode_split_over_workers_equals_prefill(isa, shape, pools):
    n = 700
    world = World(shape, (n, 90), np.random.default_rng(2))
    whole, _ = world.step(isa, pools(isa, 1), 1, [(0, 0, n), (1, 0, 90)])
    np.testing.assert_allclose(whole[0], world.reference(0), rtol=2e-5, atol=3e-6)
    fresh = World(shape, (n, 90), np.random.default_rng(2))
    fresh.write(0, 0, n - 2), fresh.write(1, 0, 88)
    for back in (2, 1):
        chunks = [(0, n - back, n - back + 1), (1, 90 - back, 91 - back)]
        for workers in (1, 2, 3):
            out, split = fresh.step(isa, pools(isa, workers), workers, chunks)
            if workers != 2 and not (shape.window or shape.chunk):  # 700 and 90: no even share
                assert split == (workers == 3)
            assert (out[0] == whole[0][n - back]).all() and (out[1] == whole[1][90 - back]).all()


@pytest.mark.parametrize("isa", ISAS)
def test_pages_outside_the_window_are_not_touched(isa, pools):
    shape = Shape(window=50)
    world = World(shape, (640,), np.random.default_rng(3))
    whole, _ = world.step(isa, pools(isa, 1), 1, [(0, 0, 640)])
    for index in range((639 - 49) // 32):
        world.sequences[0].pages[index] = 1 << 29
    world.write = lambda *_: None
    out, _ = world.step(isa, pools(isa, 2), 2, [(0, 639, 640)])
    assert (out[0] == whole[0][639]).all()


def test_scratch_formula_agrees_with_the_header():
    lib = library("portable")
    lib.attention_scratch.restype = L
    for case in (
        (9, 3, 64, 64, 8192, 2),
        (4, 1, 256, 256, 200, 4),
        (40, 1, 80, 100, 257, 3),
        (8, 8, 64, 64, 4096, 1),
        (128, 1, 576, 512, 4096, 3, True),
        (6, 2, 40, 33, 700, 2, True),
    ):
        heads, kv_heads, k_dim, v_dim, context, workers, *v_in_k = case
        got = lib.attention_scratch(
            heads, kv_heads, k_dim, v_dim, L(context), workers, bool(v_in_k)
        )
        assert got == workspace.attention_scratch_bytes(*case)
