"""Bodies of groups as Llama-3.1-8B and Qwen3-30B-A3B have them, for what depends on the shape.

Names that begin with `w` are weights. Each entry: the phase, and the text.
"""

from __future__ import annotations

_CACHE = "cache[8, 128, 128, {kv}, page=32]"


def linear(rows: int, columns: int, dtype: str) -> str:
    return f"""
    func @body(%x: f32[T, {columns}], %w: {dtype}[{rows}, {columns}]) -> (f32[T, {rows}]) {{
      %y = core.linear(%x, %w) : f32[T, {rows}]
      return %y
    }}"""


def linear_with_residual(dtype: str) -> str:
    return f"""
    func @body(%x: f32[T, 14336], %w: {dtype}[4096, 14336], %r: f32[T, 4096]) -> (f32[T, 4096]) {{
      %y = core.linear(%x, %w) : f32[T, 4096]
      %z = core.add(%r, %y) : f32[T, 4096]
      return %z
    }}"""


def glu_linear(dtype: str) -> str:
    matrix = f"{dtype}[14336, 4096]"
    return f"""
    func @body(%x: f32[T, 4096], %w_gate: {matrix}, %w_up: {matrix}) -> (f32[T, 14336]) {{
      %gate = core.linear(%x, %w_gate) : f32[T, 14336]
      %up = core.linear(%x, %w_up) : f32[T, 14336]
      %y = nn.glu(%gate, %up) {{activation = "silu"}} : f32[T, 14336]
      return %y
    }}"""


def experts(dtype: str) -> str:
    inner, outer = f"{dtype}[128, 768, 2048]", f"{dtype}[128, 2048, 768]"
    return f"""
    func @body(%x: f32[T, 2048], %chosen: i64[T, 8], %share: f32[T, 8], %w_gate: {inner},
               %w_up: {inner}, %w_down: {outer}) -> (f32[T, 2048]) {{
      %y = nn.experts(%x, %chosen, %share, %w_gate, %w_up, %w_down) {{activation = "silu"}}
        : f32[T, 2048]
      return %y
    }}"""


def rope_append(kv: str) -> str:
    cache = _CACHE.format(kv=kv)
    return f"""
    func @body(%qkv: f32[T, 6144], %w_q: bf16[128], %w_k: bf16[128], %cos: f32[T, 64],
               %sin: f32[T, 64], %kv: {cache}, %slots: i32[T]) -> (f32[T, 32, 128], {cache}) {{
      %q = core.slice(%qkv) {{axis = 1, start = 0, stop = 4096}} : f32[T, 4096]
      %k = core.slice(%qkv) {{axis = 1, start = 4096, stop = 5120}} : f32[T, 1024]
      %v = core.slice(%qkv) {{axis = 1, start = 5120, stop = 6144}} : f32[T, 1024]
      %q1 = core.reshape(%q) {{shape = (T, 32, 128)}} : f32[T, 32, 128]
      %qn = nn.rms_norm(%q1, %w_q) {{eps = 1e-06}} : f32[T, 32, 128]
      %k1 = core.reshape(%k) {{shape = (T, 8, 128)}} : f32[T, 8, 128]
      %kn = nn.rms_norm(%k1, %w_k) {{eps = 1e-06}} : f32[T, 8, 128]
      %v1 = core.reshape(%v) {{shape = (T, 8, 128)}} : f32[T, 8, 128]
      %qr = nn.rope(%qn, %cos, %sin) : f32[T, 32, 128]
      %kr = nn.rope(%kn, %cos, %sin) : f32[T, 8, 128]
      %after = serve.kv_append(%kv, %kr, %v1, %slots) : {cache}
      return %qr, %after
    }}"""


def attention(kv: str, sequences: str) -> str:
    cache = _CACHE.format(kv=kv)
    return f"""
    func @body(%q: f32[T, 32, 128], %kv: {cache}, %positions: i32[T],
               %starts: i32[{sequences} + 1], %lengths: i32[{sequences}],
               %tables: i32[{sequences}, V]) -> (f32[T, 32, 128])
        where T in 1..2048, U in 1..64, V in 1..4096 {{
      %y = serve.paged_attention(%q, %kv, %positions, %starts, %lengths, %tables)
        {{scale = 0.08838834764831845}} : f32[T, 32, 128]
      return %y
    }}"""


def windowed_attention() -> str:
    """Small heads, small pages, and all that may be done to a score."""
    return """
    func @body(%q: f32[T, 16, 64], %kv: cache[4, 64, 64, bf16, page=16], %positions: i32[T],
               %starts: i32[U + 1], %lengths: i32[U], %tables: i32[U, V]) -> (f32[T, 16, 64])
        where T in 1..2048, U in 1..64, V in 1..4096 {
      %y = serve.paged_attention(%q, %kv, %positions, %starts, %lengths, %tables)
        {scale = 0.125, window = 1024, softcap = 30.0} : f32[T, 16, 64]
      return %y
    }"""


def recurrence(core: str, state: str, rows: str, operands: str, weights: str, result: str) -> str:
    """A core of `ir/ops/recurrent.py`; `rows` and `weights` are the arguments `operands` names."""
    return f"""
    func @body(%s: {state}, {rows}, %positions: i32[T], %starts: i32[R + 1],
               %slots: i32[R]{weights}) -> ({result}, {state}) {{
      %y, %after = serve.{core}(%s, {operands}) : {result}, {state}
      return %y, %after
    }}"""


def head_linear(dtype: str, turned: bool) -> str:
    """As DeepSeek-V3 has them: 128 heads, into the latent space."""
    matrix = f"{dtype}[128, 128, 512]" if turned else f"{dtype}[128, 512, 128]"
    return f"""
    func @body(%q: f32[T, 128, 192], %w: {matrix}, %cos: f32[T, 32], %sin: f32[T, 32])
        -> (f32[T, 128, 576]) {{
      %x = core.slice(%q) {{axis = 2, start = 0, stop = 128, step = 1}} : f32[T, 128, 128]
      %r = core.slice(%q) {{axis = 2, start = 128, stop = 192, step = 1}} : f32[T, 128, 64]
      %p = nn.head_linear(%x, %w) {{turned = {str(turned).lower()}}} : f32[T, 128, 512]
      %t = nn.rope(%r, %cos, %sin) {{pairing = "interleaved"}} : f32[T, 128, 64]
      %y = core.concat(%p, %t) {{axis = 2}} : f32[T, 128, 576]
      return %y
    }}"""


EMBEDDING = """
    func @body(%w: bf16[128256, 4096], %ids: i32[T]) -> (f32[T, 4096]) {
      %y = core.embedding(%w, %ids) : f32[T, 4096]
      return %y
    }"""
NORM = """
    func @body(%x: f32[T, 4096], %r: f32[T, 4096], %w: bf16[4096])
        -> (f32[T, 4096], f32[T, 4096]) {
      %s = core.add(%x, %r) : f32[T, 4096]
      %y = nn.rms_norm(%s, %w) {eps = 1e-06} : f32[T, 4096]
      return %s, %y
    }"""
ROUTING = """
    func @body(%x: f32[T, 128]) -> (i64[T, 8], f32[T, 8]) {
      %p = core.softmax(%x) {axis = 1} : f32[T, 128]
      %v, %i = core.topk(%p) {k = 8} : f32[T, 8], i64[T, 8]
      %sum = core.sum(%v) {axes = (1,)} : f32[T, 1]
      %share = core.div(%v, %sum) : f32[T, 8]
      return %i, %share
    }"""
GATHER = """
    func @body(%x: f32[T, 4096], %rows: i32[U]) -> (f32[U, 4096]) {
      %y = core.gather_rows(%x, %rows) : f32[U, 4096]
      return %y
    }"""

# Mamba, Mamba 2 and gated delta rule at the sizes of models of 2 to 80 billion parameters.
_STEP = "%positions, %starts, %slots"
RECURRENCES = (
    recurrence(
        "causal_conv1d", "state[3, 8192, f32]", "%x: f32[T, 8192]", f"%x, {_STEP}, %w",
        ", %w: f32[4, 8192]", "f32[T, 8192]",
    ),
    recurrence(
        "selective_scan", "state[16, 8192, f32]",
        "%x: f32[T, 8192], %dt: f32[T, 8192], %b: f32[T, 16], %c: f32[T, 16]",
        f"%x, %dt, %b, %c, {_STEP}, %w", ", %w: f32[16, 8192]", "f32[T, 8192]",
    ),
    recurrence(
        "ssd_scan", "state[80, 128, 64, f32]",
        "%x: f32[T, 80, 64], %dt: f32[T, 80], %b: f32[T, 1, 128], %c: f32[T, 1, 128]",
        f"%x, %dt, %b, %c, {_STEP}, %w", ", %w: f32[80]", "f32[T, 80, 64]",
    ),
    recurrence(
        "gated_delta_rule", "state[32, 128, 128, f32]",
        "%q: f32[T, 16, 128], %k: f32[T, 16, 128], %v: f32[T, 32, 128], %g: f32[T, 32, 1], "
        "%beta: f32[T, 32]",
        f"%q, %k, %v, %g, %beta, {_STEP}", "", "f32[T, 32, 128]",
    ),
)  # fmt: skip

# Each becomes one file of kernels, compiled once an architecture.
BODIES: dict[str, list[tuple[str, str]]] = {
    "rows": [("prefill", text) for text in (EMBEDDING, NORM, ROUTING, GATHER)],
    "attention": [
        ("prefill", rope_append("bf16")),
        ("prefill", attention("bf16", "U")),
        ("prefill", windowed_attention()),
        ("decode", attention("bf16", "T")),
    ],
    "attention_i8": [
        ("prefill", rope_append("i8")),
        ("prefill", attention("i8", "U")),
        ("decode", attention("i8", "T")),
    ],
    "linear": [
        ("decode", linear(6144, 4096, "bf16")),
        ("decode", linear_with_residual("u4b_g128")),
        ("decode", linear_with_residual("q4_k")),
        ("decode", glu_linear("bf16")),
    ],
    "experts": [("decode", experts("bf16"))],
    "layers": [
        *(("prefill", text) for text in RECURRENCES),
        ("decode", head_linear("bf16", turned=False)),
        ("decode", head_linear("q8_0", turned=True)),
    ],
}
