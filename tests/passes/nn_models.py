"""Small plain graphs at the nn stage: what the raise passes hand to the serve passes.

One line of options stands for one architecture; the text is IR and goes through the parser.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from inferc.ir.core import Func, Module
from inferc.ir.interp import Params, run
from inferc.ir.parse import parse_module

HIDDEN, HEADS, GROUPS, HEAD, INNER, VOCAB = 32, 4, 2, 8, 48, 64


@dataclass(frozen=True)
class Model:
    """Options that tell the architectures apart."""

    layers: int = 2
    norm: str = "rms"  # rms | gemma (weight + 1) | layer (with bias) | layer_plain
    pre_norm: bool = True
    post_norm: bool = False
    head_norm: str = ""  # "" | head | full
    qkv: str = "split"  # split | fused | transposed
    bias: bool = False
    mlp: str = "glu"  # glu | fused_glu | gelu
    parallel: bool = False
    windows: tuple[int | None, ...] = (None,)  # of the layers, repeated
    rope: tuple[bool, ...] = (True,)  # of the layers, repeated
    rotary: int = 8
    pairing: str = "half"
    positions: str = "rope"  # rope | learned
    embedding_scale: float | None = None
    residual_scale: float | None = None
    logit_scale: float | None = None
    logit_softcap: float | None = None
    softcap: float | None = None
    tied: bool = True
    weight: str = "f32"
    up_weight: str = "f32"


MODELS: dict[str, Model] = {
    "llama": Model(tied=False),
    "mistral": Model(windows=(5,), tied=False),
    "qwen2": Model(bias=True),
    "qwen3": Model(head_norm="head"),
    "smollm3": Model(rope=(True, False)),
    "gemma2": Model(
        norm="gemma", post_norm=True, windows=(5, None), embedding_scale=5.656, softcap=50.0,
        logit_softcap=30.0,
    ),
    "gemma3": Model(
        norm="gemma", post_norm=True, head_norm="head", windows=(5, None), embedding_scale=5.656
    ),
    "gpt2": Model(
        norm="layer", qkv="transposed", bias=True, mlp="gelu", positions="learned", rope=(False,)
    ),
    "phi3": Model(qkv="fused", mlp="fused_glu", rotary=6, tied=False),
    "granite": Model(embedding_scale=12.0, residual_scale=0.22, logit_scale=0.125),
    "olmo2": Model(pre_norm=False, post_norm=True, head_norm="full", tied=False),
    "cohere2": Model(
        norm="layer_plain", parallel=True, windows=(5, None), rope=(True, False),
        pairing="interleaved", logit_scale=0.25,
    ),
}  # fmt: skip


def build(name: str, **changes: object) -> Module:
    """The graph of an architecture, parsed."""
    return parse_module(text(replace(MODELS[name], **changes)))  # type: ignore[arg-type]


def text(model: Model) -> str:
    """The graph as IR text."""
    return _Writer(model).run()


class _Writer:
    def __init__(self, model: Model) -> None:
        self.m, self.params, self.lines, self.n = model, [], [], 0
        self.rows = "B, S"

    def run(self) -> str:
        m = self.m
        embed = self.param("embed_tokens.weight", (VOCAB, HIDDEN), m.weight)
        x = self.op("core.embedding", [embed, "ids"], (HIDDEN,), "embed")
        if m.embedding_scale:
            x = self.scale(x, m.embedding_scale, (HIDDEN,))
        if m.positions == "learned":
            table = self.param("embed_positions.weight", (64, HIDDEN), "f32")
            p = self.op("core.embedding", [table, "positions"], (HIDDEN,), "embed")
            x = self.op("core.add", [x, p], (HIDDEN,), "embed")
        else:
            self.rope_table()
        for i in range(m.layers):
            x = self.layer(i, x)
        x = self.norm(x, "norm")
        head = embed if m.tied else self.param("lm_head.weight", (VOCAB, HIDDEN), m.weight)
        y = self.op("core.linear", [x, head], (VOCAB,), "lm_head")
        if m.logit_scale:
            y = self.scale(y, m.logit_scale, (VOCAB,))
        if m.logit_softcap:
            y = self.scale(y, m.logit_softcap, (VOCAB,), "core.div")
            y = self.op("core.tanh", [y], (VOCAB,), "lm_head")
            y = self.scale(y, m.logit_softcap, (VOCAB,))
        body = "\n".join([*self.params, *self.lines])
        return (
            f"func @forward(%ids: i64[B, S], %positions: i64[B, S]) -> (f32[B, S, {VOCAB}]) "
            f"where B in 1..8, S in 1..64 {{\n{body}\n  return %{y}\n}}\n"
        )

    # -- pieces
    def name(self) -> str:
        self.n += 1
        return f"v{self.n}"

    def param(self, path: str, shape: tuple[int, ...], dtype: str = "f32") -> str:
        name, module = self.name(), path.rpartition(".")[0]
        sizes = ", ".join(map(str, shape))
        self.params.append(
            f'  %{name} = param @model.{path} : {dtype}[{sizes}] loc("model.{module}", "M")'
        )
        return name

    def op(
        self, op: str, operands: list[str], shape: tuple[int, ...], module: str, attrs: str = ""
    ) -> str:
        name = self.name()
        values = ", ".join(f"%{o}" for o in operands)
        type_ = f"f32[{', '.join([self.rows, *map(str, shape)])}]"
        attrs = f" {{{attrs}}}" if attrs else ""
        self.lines.append(f'  %{name} = {op}({values}){attrs} : {type_} loc("model.{module}", "M")')
        return name

    def constant(self, value: float) -> str:
        name = self.name()
        self.lines.append(
            f'  %{name} = core.constant() {{values = ({value},), shape = (), dtype = "f32"}}'
            f' : f32[] loc("model", "M")'
        )
        return name

    def scale(self, x: str, by: float, shape: tuple[int, ...], op: str = "core.mul") -> str:
        return self.op(op, [x, self.constant(by)], shape, "scale")

    def rope_table(self) -> None:
        half = self.m.rotary // 2
        values = ", ".join(str(10.0 ** (-i / half)) for i in range(half))
        self.lines.append(
            f'  %inv = core.constant() {{values = ({values}), shape = ({half},), dtype = "f32"}}'
            f' : f32[{half}] loc("model.rotary", "R")\n'
            f"  %cos, %sin = nn.rope_table(%positions, %inv) : f32[B, S, {half}], "
            f'f32[B, S, {half}] loc("model.rotary", "R")'
        )

    def norm(self, x: str, module: str, shape: tuple[int, ...] = ()) -> str:
        shape = shape or (HIDDEN,)
        weights = [self.param(f"{module}.weight", shape[-1:])]
        kind = "layer_norm" if self.m.norm.startswith("layer") else "rms_norm"
        if self.m.norm == "layer":
            weights.append(self.param(f"{module}.bias", shape[-1:]))
        if self.m.norm == "gemma":
            one, name = self.constant(1.0), self.name()
            self.lines.append(
                f"  %{name} = core.add(%{weights[0]}, %{one}) : f32[{shape[-1]}]"
                f' loc("model.{module}", "M")'
            )
            weights = [name]
        return self.op(f"nn.{kind}", [x, *weights], shape, module, "eps = 1e-05")

    def linear(self, x: str, module: str, n: int, k: int, dtype: str = "") -> str:
        if self.m.qkv == "transposed":
            stored, name = self.param(f"{module}.weight", (k, n)), self.name()
            self.lines.append(
                f"  %{name} = core.transpose(%{stored}) {{perm = (1, 0)}} : f32[{n}, {k}]"
                f' loc("model.{module}", "M")'
            )
            weights = [name]
        else:
            weights = [self.param(f"{module}.weight", (n, k), dtype or self.m.weight)]
        if self.m.bias:
            weights.append(self.param(f"{module}.bias", (n,)))
        return self.op("core.linear", [x, *weights], (n,), module)

    # -- layers
    def layer(self, i: int, x: str) -> str:
        at, m = f"layers.{i}", self.m
        h = self.norm(x, f"{at}.input_norm") if m.pre_norm else x
        attended = self.attention(i, h)
        if m.parallel:
            both = self.op("core.add", [x, attended], (HIDDEN,), at)
            return self.op("core.add", [both, self.mlp(at, h)], (HIDDEN,), at)
        if m.post_norm:
            attended = self.norm(attended, f"{at}.post_attention_norm")
        x = self.residual(x, attended, at)
        h = self.norm(x, f"{at}.mlp_norm") if m.pre_norm else x
        y = self.mlp(at, h)
        if m.post_norm:
            y = self.norm(y, f"{at}.post_mlp_norm")
        return self.residual(x, y, at)

    def residual(self, x: str, y: str, at: str) -> str:
        if self.m.residual_scale:
            y = self.scale(y, self.m.residual_scale, (HIDDEN,))
        return self.op("core.add", [x, y], (HIDDEN,), at)

    def slice(self, x: str, start: int, stop: int, at: str) -> str:
        span = f"axis = 2, start = {start}, stop = {stop}"
        return self.op("core.slice", [x], (stop - start,), at, span)

    def attention(self, i: int, h: str) -> str:
        at, m, q_size, kv_size = f"layers.{i}.attn", self.m, HEADS * HEAD, GROUPS * HEAD
        if m.qkv == "split":
            q = self.linear(h, f"{at}.q_proj", q_size, HIDDEN)
            k = self.linear(h, f"{at}.k_proj", kv_size, HIDDEN)
            v = self.linear(h, f"{at}.v_proj", kv_size, HIDDEN)
        else:
            y = self.linear(h, f"{at}.qkv", q_size + 2 * kv_size, HIDDEN)
            q = self.slice(y, 0, q_size, at)
            k = self.slice(y, q_size, q_size + kv_size, at)
            v = self.slice(y, q_size + kv_size, q_size + 2 * kv_size, at)
        if m.head_norm == "full":
            q = self.norm(q, f"{at}.q_norm", (q_size,))
            k = self.norm(k, f"{at}.k_norm", (kv_size,))
        q, k = self.heads(q, HEADS, at, i), self.heads(k, GROUPS, at, i)
        v = self.op("core.reshape", [v], (GROUPS, HEAD), at, f"shape = (B, S, {GROUPS}, {HEAD})")
        attrs = f"scale = {HEAD**-0.5}"
        window = m.windows[i % len(m.windows)]
        attrs += f", window = {window}" if window else ""
        attrs += f", softcap = {m.softcap}" if m.softcap else ""
        a = self.op("nn.attention", [q, k, v], (HEADS, HEAD), at, attrs)
        a = self.op("core.reshape", [a], (q_size,), at, f"shape = (B, S, {q_size})")
        return self.linear(a, f"{at}.o_proj", HIDDEN, q_size)

    def heads(self, x: str, heads: int, at: str, i: int) -> str:
        shape = (heads, HEAD)
        x = self.op("core.reshape", [x], shape, at, f"shape = (B, S, {heads}, {HEAD})")
        if self.m.head_norm == "head":
            x = self.norm(x, f"{at}.norm{heads}", shape)
        if self.m.rope[i % len(self.m.rope)]:
            attrs = "" if self.m.pairing == "half" else f'pairing = "{self.m.pairing}"'
            x = self.op("nn.rope", [x, "cos", "sin"], shape, at, attrs)
        return x

    def mlp(self, at: str, h: str) -> str:
        m, at = self.m, f"{at}.mlp"
        if m.mlp == "gelu":
            y = self.linear(h, f"{at}.fc", INNER, HIDDEN)
            y = self.op("core.gelu", [y], (INNER,), at, 'approximate = "tanh"')
            return self.linear(y, f"{at}.proj", HIDDEN, INNER)
        if m.mlp == "fused_glu":
            y = self.linear(h, f"{at}.gate_up", 2 * INNER, HIDDEN)
            gate, up = self.slice(y, 0, INNER, at), self.slice(y, INNER, 2 * INNER, at)
        else:
            gate = self.linear(h, f"{at}.gate_proj", INNER, HIDDEN)
            up = self.linear(h, f"{at}.up_proj", INNER, HIDDEN, m.up_weight)
        y = self.op("nn.glu", [gate, up], (INNER,), at, 'activation = "silu"')
        return self.linear(y, f"{at}.down_proj", HIDDEN, INNER)


def run64(func: Func, inputs: list[object], params: Params) -> list[Any]:
    """Interpret a function in float64."""
    return run(func, inputs, params, precision="f64")
