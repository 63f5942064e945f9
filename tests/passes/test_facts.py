"""Every fact has a module that breaks it, and one where it holds."""

from __future__ import annotations

import pytest

from inferc.ir.parse import parse_module
from inferc.passes.facts import FACTS, FactBroken, check_facts

KV = "cache[1, 4, 4, f32]"
ARGUMENTS = (
    "%ids: i32[T], %positions: i32[T], %slots: i32[T], %sequence_starts: i32[R + 1], "
    f"%context_lengths: i32[R], %block_tables: i32[R, P], %kv_0: {KV}"
)
RANGES = "where T in 1..8, R in 1..4, P in 1..4, L in 1..4, B in 1..2, S in 1..4"


def func(name: str, args: str, results: str, body: str) -> str:
    return f"func @{name}({args}) -> ({results}) {RANGES} {{\n{body}\n}}\n"


GROUP = """%g = fuse.group(%a = %x) {{{attrs}}} : f32[4] {{
  %n = core.neg(%a) : f32[4]
  yield %n
}}
return %g"""
STEP = func("prefill", ARGUMENTS, KV, "return %kv_0")
STATES = func("decode", "%ids: i32[T], %s: state[3, 4, f32]", "state[3, 4, f32]", "return %s")
GOOD = {
    "normalized": func("f", "%x: f32[4]", "f32[4]", "return %x"),
    "raised": func("forward", "%x: i64[B, S]", "i64[B, S]", "return %x"),
    "flat": func("forward", "%ids: i32[T]", "i32[T]", "return %ids"),
    "paged": STEP,
    "states": STATES,
    "phases": STEP + STEP.replace("@prefill", "@decode"),
    "logits-last": func("decode", "%x: f32[L, 4]", "f32[L, 4]", "return %x"),
    "hoisted": func("decode", "", "f32[4]", "%w = param @w : f32[4]\nreturn %w"),
    "fused": func("decode", "%x: f32[4]", "f32[4]", GROUP.format(attrs="")),
    "kv-planned": func("decode", ARGUMENTS, KV, "return %kv_0").replace(
        "4, f32]", "4, f32, page=8]"
    ),
    "selected": func("decode", "%x: f32[4]", "f32[4]", GROUP.format(attrs='kernel = "rows"')),
    "packed": func("decode", "", "f32[4]", "%w = param @w : f32[4]\nreturn %w")
    + func("pack/w", "", "f32[4]", "%v = param @v : f32[4]\nreturn %v"),
    "memory-planned": func(
        "decode", "%x: f32[4]", "f32[4]", GROUP.format(attrs="offsets = (none,)")
    ),
}
BAD = {
    "normalized": (
        func("f", "%x: f32[4]", "f32[4]", "%a = core.neg(%x) : f32[4]\nreturn %x"),
        "nobody reads core.neg",
    ),
    "raised": (
        func("forward", "%x: i64[B, S]", "bool[B, 1, S, S]",
             "%m = nn.mask(%x) : bool[B, 1, S, S]\nreturn %m"),
        "found nn.mask",
    ),
    "flat": (func("forward", "%ids: i64[B, S]", "i64[B, S]", "return %ids"), "%ids of @forward"),
    "paged": (STEP.replace(f"({KV})", "()").replace("return %kv_0", "return"), "returns 0"),
    "states": (
        STATES.replace("(state[3, 4, f32])", "()").replace("return %s", "return"), "and returns 0"
    ),
    "phases": (STEP, "found the step functions prefill"),
    "logits-last": (func("decode", "%x: f32[T, 4]", "f32[T, 4]", "return %x"), "returns f32[T, 4]"),
    "hoisted": (
        func("decode", "", "f32[4]",
             "%w = param @w : f32[4]\n%n = core.neg(%w) : f32[4]\nreturn %n"),
        "found core.neg",
    ),
    "fused": (
        func("decode", "%x: f32[4]", "f32[4]", "%n = core.neg(%x) : f32[4]\nreturn %n"),
        "found core.neg",
    ),
    "kv-planned": (func("decode", ARGUMENTS, KV, "return %kv_0"), "%kv_0 of @decode is cache"),
    "selected": (GOOD["fused"], "no kernel for fuse.group"),
    "packed": (GOOD["packed"].replace("pack/w", "pack/u"), "nobody reads what @pack/u yields"),
    "memory-planned": (GOOD["fused"], "no offsets for fuse.group"),
}  # fmt: skip


def test_every_fact_is_here() -> None:
    assert set(GOOD) == set(BAD) == set(FACTS)


@pytest.mark.parametrize("name", FACTS)
def test_holds(name: str) -> None:
    check_facts(parse_module(GOOD[name]), {name}, "this-pass")


@pytest.mark.parametrize("name", FACTS)
def test_breaks(name: str) -> None:
    text, message = BAD[name]
    with pytest.raises(FactBroken) as caught:
        check_facts(parse_module(text), {name}, "this-pass")
    assert message in str(caught.value)
    assert f"Pass this-pass ensures the fact {name!r}" in str(caught.value)


def test_phases_want_the_arguments_of_the_step() -> None:
    text = GOOD["phases"].replace("%slots: i32[T], %sequence_starts: i32[R + 1]",
                                  "%sequence_starts: i32[R + 1], %slots: i32[T]")  # fmt: skip
    with pytest.raises(FactBroken, match="expected ids, positions, slots, sequence_starts"):
        check_facts(parse_module(text), {"phases"}, "split-phases")
