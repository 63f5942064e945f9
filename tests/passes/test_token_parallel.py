"""The token-parallel analysis: what it proves, and what it refuses by op and module."""

from __future__ import annotations

import pytest

from inferc.errors import CompileError
from inferc.ir.core import Func
from inferc.ir.parse import parse_func
from inferc.passes.analysis.token_parallel import analyze_token_parallel

HEAD = (
    "func @forward(%ids: i64[B, S], %positions: i64[B, S]) -> (f32[B, S, 8]) "
    "where B in 1..4, S in 1..64 {\n  %e = param @embed : f32[16, 8]\n"
    "  %x = core.embedding(%e, %ids) : f32[B, S, 8]\n"
)


def forward(body: str) -> Func:
    return parse_func(HEAD + body + "\n  return %y\n}")


def test_finds_token_axes_and_mixing_ops() -> None:
    func = forward(
        "%h = core.reshape(%x) {shape = (B, S, 2, 4)} : f32[B, S, 2, 4]\n"
        "%t = core.transpose(%h) {perm = (2, 0, 3, 1)} : f32[2, B, 4, S]\n"
        "%flat = core.reshape(%x) {shape = (B*S, 8)} : f32[B*S, 8]\n"
        "%b = core.reshape(%flat) {shape = (B, S, 2, 4)} : f32[B, S, 2, 4]\n"
        "%a = nn.attention(%h, %b, %h) {scale = 0.5} : f32[B, S, 2, 4]\n"
        "%y = core.reshape(%a) {shape = (B, S, 8)} : f32[B, S, 8]"
    )
    found = analyze_token_parallel(func)
    axes = {value.hint: own for value, own in found.axes.items()}
    assert axes["t"] == (1, 3)
    assert axes["flat"] == (0,)
    assert axes["b"] == axes["y"] == (0, 1)
    assert axes["e"] == ()
    assert [op.name for op in found.mixing] == ["nn.attention"]


def test_experts_and_selection_keep_the_token_axes() -> None:
    func = forward(
        "%g = param @gate : f32[4, 6, 8]\n%u = param @up : f32[4, 6, 8]\n"
        "%d = param @down : f32[4, 8, 6]\n"
        "%r = core.slice(%x) {axis = 2, start = 0, stop = 4} : f32[B, S, 4]\n"
        "%v, %i = core.topk(%r) {k = 2} : f32[B, S, 2], i64[B, S, 2]\n"
        "%o = param @order : i32[4]\n"
        "%c = core.take(%r, %o) : f32[B, S, 4]\n"
        "%t = core.take_along(%c, %i) : f32[B, S, 2]\n"
        '%y = nn.experts(%x, %i, %t, %g, %u, %d) {activation = "silu"} : f32[B, S, 8]'
    )
    axes = {value.hint: own for value, own in analyze_token_parallel(func).axes.items()}
    assert axes["v"] == axes["i"] == axes["c"] == axes["t"] == axes["y"] == (0, 1)


REFUSED = {
    "a choice among tokens": (
        '%t = core.transpose(%x) {perm = (0, 2, 1)} : f32[B, 8, S] loc("model.pick")\n'
        '%o = core.iota() {size = S, dtype = "i64"} : i64[S]\n'
        "%b = core.broadcast_to(%o) {shape = (B, 8, S)} : i64[B, 8, S]\n"
        '%k = core.take_along(%t, %b) : f32[B, 8, S] loc("model.pick")\n'
        "%y = core.transpose(%k) {perm = (0, 2, 1)} : f32[B, S, 8]",
        ["mixes positions"],
    ),
    "columns that are tokens": (
        '%t = core.transpose(%x) {perm = (0, 2, 1)} : f32[B, 8, S] loc("model.pick")\n'
        "%o = param @order : i32[8]\n"
        '%k = core.take(%t, %o) : f32[B, 8, 8] loc("model.pick")\n'
        "%s = core.sum(%k) {axes = (1, 2)} : f32[B, 1, 1]\n"
        "%y = core.add(%x, %s) : f32[B, S, 8]",
        ["core.take", "model.pick", "along the token axis"],
    ),
    "softmax over the sequence": (
        '%y = core.softmax(%x) {axis = 1} : f32[B, S, 8] loc("model.mixer")',
        ["core.softmax", "model.mixer", "works along axes [1]"],
    ),
    "a slice of the sequence": (
        '%s = core.slice(%x) {axis = 1, start = 0, stop = 1} : f32[B, 1, 8] loc("model.pool")\n'
        "%y = core.broadcast_to(%s) {shape = (B, S, 8)} : f32[B, S, 8]",
        ["core.slice", "model.pool"],
    ),
    "positions made inside": (
        '%i = core.iota() {size = S, dtype = "f32"} : f32[S] loc("model.alibi")\n'
        "%r = core.reshape(%i) {shape = (S, 1)} : f32[S, 1]\n"
        "%y = core.add(%x, %r) : f32[B, S, 8]",
        ["core.iota", "model.alibi", "not on `positions`"],
    ),
    "attention that sees later tokens": (
        "%h = core.reshape(%x) {shape = (B, S, 2, 4)} : f32[B, S, 2, 4]\n"
        "%a = nn.attention(%h, %h, %h) {scale = 0.5, causal = false} : f32[B, S, 2, 4] "
        'loc("model.encoder.attn")\n'
        "%y = core.reshape(%a) {shape = (B, S, 8)} : f32[B, S, 8]",
        ["nn.attention", "model.encoder.attn", "not causal"],
    ),
    "attention with a mask of its own": (
        '%m = nn.mask(%positions) {kind = "bidirectional"} : bool[B, 1, S, S]\n'
        "%h = core.reshape(%x) {shape = (B, S, 2, 4)} : f32[B, S, 2, 4]\n"
        "%a = nn.attention(%h, %h, %h, %m) {scale = 0.5} : f32[B, S, 2, 4]\n"
        "%y = core.reshape(%a) {shape = (B, S, 8)} : f32[B, S, 8]",
        ["nn.mask", "nothing is known"],
    ),
    "two values of tokens multiplied as matrices": (
        "%t = core.transpose(%x) {perm = (0, 2, 1)} : f32[B, 8, S]\n"
        '%p = core.matmul(%x, %t) : f32[B, S, S] loc("model.scores")\n'
        "%y = core.matmul(%p, %x) : f32[B, S, 8]",
        ["core.matmul", "model.scores", "no weights"],
    ),
    "sequence folded into the batch the wrong way": (
        "%t = core.transpose(%x) {perm = (1, 0, 2)} : f32[S, B, 8]\n"
        '%y = core.reshape(%t) {shape = (B, S, 8)} : f32[B, S, 8] loc("model.shuffle")',
        ["core.reshape", "model.shuffle", "folds the token axis"],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses_by_op_and_module(case: str) -> None:
    body, parts = REFUSED[case]
    with pytest.raises(CompileError) as error:
        analyze_token_parallel(forward(body))
    for part in parts:
        assert part in str(error.value)


def test_refuses_results_that_are_no_logits_of_tokens() -> None:
    with pytest.raises(CompileError, match="must return logits for each token"):
        analyze_token_parallel(
            parse_func(
                "func @forward(%ids: i64[B, S]) -> (f32[16, 8]) where B in 1..4, S in 1..64 {\n"
                "  %e = param @embed : f32[16, 8]\n  return %e\n}"
            )
        )
