"""A step that is nothing but experts: rows and their routing are looked up by token id."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from inferc.ir.blocks import dequantize
from inferc.ir.blocks_encode import random_blocks
from inferc.ir.core import Module
from inferc.ir.interp import run
from inferc.ir.parse import parse_module
from inferc.ir.types import TensorType, numpy_dtype
from inferc.passes.manager import run_passes
from inferc.passes.registry import make_pass
from tests.codegen.step_runner import Batch, Compiled, make_batch

VOCAB, PAGE = 40, 16
FUSE = (
    "hoist-weights", "fuse-routing", "fuse-activation", "fuse-epilogue", "fuse-norm-residual",
    "fuse-elementwise",
)  # fmt: skip
HEAD = (
    "func @{name}(%ids: i32[{t}], %positions: i32[{t}], %slots: i32[{t}], "
    "%sequence_starts: i32[R + 1], %context_lengths: i32[R], %block_tables: i32[R, P], "
    "%logit_indices: i32[L]) -> (f32[L, {hidden}]) where {where}"
)


@dataclass(frozen=True)
class Shape:
    """Sizes, stored types, and the attributes of the op."""

    experts: int
    chosen: int
    hidden: int
    inner: int
    up: str = "f32"
    down: str = "f32"
    activation: str = "silu"
    gated: bool = True
    biased: bool = False
    more: str = ""

    def parameters(self) -> dict[str, TensorType]:
        e, h, i = self.experts, self.hidden, self.inner
        into, out = TensorType((e, i, h), self.up), TensorType((e, h, i), self.down)
        matrices = {"gate": into, "up": into, "down": out} if self.gated else {"up": into}
        matrices["down"] = out
        if self.biased:
            biases = {f"{n}_bias": TensorType(t.shape[:2], "f32") for n, t in matrices.items()}
            matrices |= biases
        tables = {"rows": TensorType((VOCAB, h), "f32"), "routes": TensorType((VOCAB, e), "f32")}
        return tables | matrices

    def function(self, name: str, t: str, where: str) -> str:
        lines = [f"%{n} = param @{n} : {type_}" for n, type_ in self.parameters().items()]
        k, h = self.chosen, self.hidden
        given = ", ".join(f"%{n}" for n in list(self.parameters())[2:])
        attrs = f'activation = "{self.activation}", gated = {str(self.gated).lower()}, '
        attrs += f"biased = {str(self.biased).lower()}{self.more}"
        lines += [
            f"%x = core.embedding(%rows, %ids) : f32[{t}, {h}]",
            f"%r = core.embedding(%routes, %ids) : f32[{t}, {self.experts}]",
            f"%p = core.softmax(%r) {{axis = 1}} : f32[{t}, {self.experts}]",
            f"%w, %i = core.topk(%p) {{k = {k}}} : f32[{t}, {k}], i64[{t}, {k}]",
            f"%y = nn.experts(%x, %i, %w, {given}) {{{attrs}}} : f32[{t}, {h}]",
            f"%z = core.gather_rows(%y, %logit_indices) : f32[L, {h}]",
            "return %z",
        ]
        head = HEAD.format(name=name, t=t, hidden=h, where=where)
        return head + " {\n  " + "\n  ".join(lines) + "\n}\n"

    def module(self, step_tokens: int) -> Module:
        limits = f"R in 1..8, P in 1..32, L in 1..{step_tokens}"
        text = self.function("prefill", "T", f"T in 1..{step_tokens}, {limits}")
        module = parse_module(text + self.function("decode", "R", limits))
        run_passes(module, [make_pass(name) for name in FUSE], given={"flat", "phases"})
        return module

    def stored(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Random parameters; nobody is routed to the last expert."""
        rng, out = np.random.default_rng(seed), dict[str, np.ndarray]()
        for name, type_ in self.parameters().items():
            shape = tuple(int(s) for s in type_.shape)  # type: ignore[arg-type]
            if type_.is_block:
                raw = random_blocks(type_.dtype, shape[0] * shape[1], shape[2], rng)
                out[name] = raw.reshape(*shape[:2], -1)
            elif type_.dtype == "i8":
                out[name] = rng.integers(-9, 10, shape).astype(np.int8)
            else:
                scale = 1.0 if name in ("rows", "routes") else 0.3
                out[name] = (rng.standard_normal(shape) * scale).astype(numpy_dtype(type_.dtype))
        out["routes"][:, -1] = -9
        return out


def compiled(
    shape: Shape,
    stored: dict[str, np.ndarray],
    folder: Path,
    step_tokens: int = 200,
    **options: str,
) -> Compiled:
    return Compiled(shape.module(step_tokens), stored, folder, 1, **options)  # type: ignore[arg-type]


def batch(ids: np.ndarray) -> Batch:
    """One sequence; results of all its rows."""
    tables = np.zeros((1, 32), np.int32)
    return make_batch([len(ids)], [0], tables, PAGE, ids, logit_rows=range(len(ids)))


def reference(shape: Shape, stored: dict[str, np.ndarray], ids: np.ndarray) -> np.ndarray:
    def value(name: str, type_: TensorType) -> np.ndarray:
        array = stored[name]
        if not type_.is_block:
            return array.astype(np.float64)
        return dequantize(type_.dtype, array.reshape(-1, array.shape[-1])).reshape(type_.shape)

    func = shape.module(len(ids)).funcs["prefill"]
    return run(func, batch(ids).arrays(), value, precision="f64")[0]
