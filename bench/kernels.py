"""Micro benchmark of the CPU kernels beside what the machine gives in the same run.

Decode: bytes of packed weights a second, as a share of the read bandwidth. Prefill: operations a
second, as a share of the peak of the instruction used. Each figure is the best of several rounds,
probes and kernels taking turns, as the machine may be shared. Options:
`python bench/kernels.py --help`.
"""

import argparse
import ctypes
import os
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from inferc.codegen import packing

ROOT = Path(__file__).parents[1]
FLAGS = "-O3 -std=c++17 -fPIC -shared -pthread -fno-exceptions -fno-rtti -ffp-contract=off".split()
KERNELS = (
    "f32_f32 f16_f32 bf16_f32 bf16_bf16 q4_0_f32 q4_1_f32 q4_1_int8 q4_1_int16 q5_0_f32 "
    "q8_0_f32 q8_0_int8 q8_0_int16 q2_k_f32 q3_k_f32 q4_k_f32 q4_k_int8 q4_k_int16 q5_k_f32 "
    "q6_k_f32 q6_k_int8 q6_k_int16 u4_g128_f32 u4_g128_int8 u4_g128_int16 u4b_g32_f32 "
    "u8_g128_f32 u8_g128_int8 u8_g128_int16 mxfp4_f32 mxfp4_int8 mxfp4_int16 nf4_g64_f32 "
    "f8_g128_f32 f8e4m3_f32 i8_f32 i8_int8 i8_int16"
).split()
# With one thread processor time is used: others on a shared machine disturb it less.
CLOCK = time.perf_counter
P, L = ctypes.c_void_p, ctypes.c_int64
# Arithmetics and what kernels.cpp calls their operands.
PEAK_BITS = {"f32": 32, "bf16": 0, "int16": 16, "int8": 8}


def aligned(nbytes: int) -> np.ndarray:
    raw = np.zeros(nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes]


def build(march: str, compiler: str) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/kernels.so"
        include = ROOT / "codegen" / "include" / "inferc"
        source = str(ROOT / "bench" / "kernels.cpp")
        subprocess.run(
            [
                compiler,
                *FLAGS,
                "-w",
                f"-march={march}",
                f"-I{include}",
                f"-I{include.parent}",
                source,
                "-o",
                out,
            ],
            check=True,
        )
        lib = ctypes.CDLL(out)
    lib.pool_new.restype = P
    lib.scratch_bytes.restype = L
    lib.run_read.restype = ctypes.c_uint64
    lib.run_peak.restype = ctypes.c_double
    lib.attention_scratch.restype = L
    return lib


def best_seconds(function, rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        begin = CLOCK()
        function()
        best = min(best, CLOCK() - begin)
    return best


@dataclass
class Machine:
    """A pool and what it can do at best."""

    lib: ctypes.CDLL
    threads: int

    def __post_init__(self) -> None:
        self.pool = P(self.lib.pool_new(self.threads))
        self.memory = aligned(256 << 20)
        self.memory[::4096] = 1

    def read_bytes_per_s(self) -> float:
        args = self.pool, P(self.memory.ctypes.data), ctypes.c_uint64(self.memory.nbytes)
        nbytes = self.lib.run_read(*args)
        return nbytes / best_seconds(lambda: self.lib.run_read(*args), 5)

    def peak_flops(self, math: str) -> float:
        """Operations a second of the arithmetic's fastest instruction, all threads."""
        args = self.pool, PEAK_BITS[math], L(400_000)
        operations = self.lib.run_peak(*args)
        return operations / best_seconds(lambda: self.lib.run_peak(*args), 5)

    def launch_us(self) -> float:
        return (
            min(best_seconds(lambda: self.lib.run_nothing(self.pool), 200) for _ in range(3)) * 1e6
        )


class Product:
    """One matmul kernel on weights too large for the caches (or small ones, by n and k)."""

    def __init__(self, machine: Machine, kernel: str, n: int, k: int):
        self.machine, self.kernel, self.n, self.k = machine, kernel, n, k
        fmt, self.math = kernel.rsplit("_", 1)
        self.weights = aligned(packing.packed_bytes(fmt, n, k))
        # Scales stay finite, and are no denormals where they are powers of two.
        codes = np.arange(251, dtype=np.uint8) % 60 + (90 if fmt == "mxfp4" else 0)
        self.weights[:] = np.resize(codes.astype(np.uint8), self.weights.size)

    def seconds(self, rows: int, rounds: int) -> float:
        m, lib = self.machine, self.machine.lib
        x = np.random.default_rng(0).standard_normal((rows, self.k), np.float32)
        y = np.empty((rows, self.n), np.float32)
        scratch = aligned(lib.scratch_bytes(L(rows), L(self.k)) * m.threads)
        function = lib[f"run_{self.kernel}"]
        args = [P(a.ctypes.data) for a in (x, self.weights)] + [L(rows), L(self.n), L(self.k)]
        args += [P(y.ctypes.data), P(scratch.ctypes.data)]
        return best_seconds(lambda: function(m.pool, *args), rounds)


class AttentionArgs(ctypes.Structure):
    _fields_ = (
        [("q", P), ("q_stride", L), ("out", P), ("out_stride", L), ("k_pool", P), ("v_pool", P)]
        + [(n, P) for n in "positions sequence_starts context_lengths block_tables".split()]
        + [(n, ctypes.c_int32) for n in "tokens sequences table_stride heads kv_heads".split()]
        + [(n, ctypes.c_int32) for n in "k_dim v_dim page_tokens".split()]
        + [("scale", ctypes.c_float), ("softcap", ctypes.c_float), ("window", ctypes.c_int32)]
        + [("chunk", ctypes.c_int32), ("slopes", P), ("sinks", P)]
        + [("scratch", P), ("scratch_bytes", L)]
    )


def attention_seconds(machine: Machine, heads, kv_heads, dim, tokens, context, kv, rounds) -> float:
    """One sequence of `context` tokens of which the last `tokens` are new; KV in f32 or bf16."""
    pages, page_tokens = -(-context // 32), 32
    rng = np.random.default_rng(0)
    q = rng.standard_normal((tokens, heads * dim), np.float32)
    out = np.empty_like(q)
    nbytes = pages * page_tokens * kv_heads * dim * (4 if kv == "f32" else 2)
    keys, values = aligned(nbytes), aligned(nbytes)
    for pool in (keys, values):
        pool[:] = rng.standard_normal(nbytes // 4, np.float32).view(np.uint8)
    size = machine.lib.attention_scratch(heads, kv_heads, dim, dim, L(context), machine.threads)
    scratch = aligned(size)
    positions = np.arange(context - tokens, context, dtype=np.int32)
    starts, length = np.array([0, tokens], np.int32), np.array([context], np.int32)
    table = rng.permutation(pages).astype(np.int32)
    at = [P(a.ctypes.data) for a in (positions, starts, length, table)]
    args = AttentionArgs(
        q.ctypes.data, heads * dim, out.ctypes.data, heads * dim,
        keys.ctypes.data, values.ctypes.data, *at,
        tokens, 1, pages, heads, kv_heads, dim, dim, page_tokens,
        dim**-0.5, 0.0, 0, 0, None, None, scratch.ctypes.data, size,
    )  # fmt: skip
    kind = int(kv != "f32")
    return best_seconds(
        lambda: machine.lib.run_attention(machine.pool, ctypes.byref(args), kind), rounds
    )


def print_attention(machine: Machine, peak: float, rounds: int) -> None:
    print("attention              decode 512    decode 8192     prefill 512     prefill 2048")
    for heads, kv_heads, dim, kv in ((9, 3, 64, "f32"), (9, 3, 64, "bf16"), (32, 8, 128, "bf16")):
        cells = []
        for context in (512, 8192):
            seconds = attention_seconds(machine, heads, kv_heads, dim, 1, context, kv, 10 * rounds)
            nbytes = context * kv_heads * dim * 2 * (4 if kv == "f32" else 2)
            cells.append(f"{seconds * 1e6:6.0f} us {nbytes / seconds / 1e9:3.0f}G")
        for tokens in (512, 2048):
            seconds = attention_seconds(machine, heads, kv_heads, dim, tokens, tokens, kv, 2)
            flops = 2 * 2 * dim * heads * tokens * (tokens + 1) / 2
            cells.append(f"{seconds * 1e3:6.2f} ms {flops / seconds / 1e9 / peak:4.0%}")
        print(f"{heads:2}/{kv_heads} x {dim:3} {kv:5} ", "  ".join(cells), flush=True)


def shape(text: str) -> tuple[int, int]:
    n, k = text.split("x")
    return int(n), int(k)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--march", default="native")
    parser.add_argument("--compiler", default=os.environ.get("CXX", "g++"))
    parser.add_argument(
        "--decode",
        type=shape,
        default=(49152, 1024),
        help="NxK of the decode test (default 49152x1024)",
    )
    parser.add_argument(
        "--prefill", type=shape, default=(1536, 1536), help="NxK of the prefill test"
    )
    parser.add_argument("--rows", type=int, default=512, help="rows of the prefill test")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("kernels", nargs="*", default=KERNELS, help=f"of {' '.join(KERNELS)}")
    args = parser.parse_args()
    if args.threads == 1:
        global CLOCK
        CLOCK = time.thread_time
    machine = Machine(build(args.march, args.compiler), args.threads)
    peaks = {math: machine.peak_flops(math) / 1e9 for math in PEAK_BITS}
    rates = ", ".join(f"{math} {rate:.0f}" for math, rate in peaks.items())
    print(f"{args.threads} threads; peak Gop/s: {rates}; launch {machine.launch_us():.1f} us")
    (n, k), (pn, pk) = args.decode, args.prefill
    print(
        f"decode [{n}, {k}], prefill {args.rows} rows of [{pn}, {pk}]; read: GB/s beside the kernel"
    )
    print("kernel       read  M=1 GB/s  of read  M=8 / M=1  prefill GFLOP/s  of peak")
    for kernel in args.kernels:
        decode, prefill = Product(machine, kernel, n, k), Product(machine, kernel, pn, pk)
        read, one = 0.0, float("inf")
        for _ in range(2):
            read = max(read, machine.read_bytes_per_s() / 1e9)
            one = min(one, decode.seconds(1, args.rounds))
        eight = decode.seconds(8, args.rounds)
        many = prefill.seconds(args.rows, args.rounds)
        rate = decode.weights.nbytes / one / 1e9
        flops = 2 * args.rows * pn * pk / many / 1e9
        peak = peaks[decode.math]
        print(
            f"{kernel:10} {read:6.1f} {rate:9.1f} {rate / read:8.0%} {eight / one:10.2f} "
            f"{flops:16.0f} {flops / peak:8.0%}",
            flush=True,
        )
    print_attention(machine, peaks["f32"], args.rounds)


if __name__ == "__main__":
    main()
