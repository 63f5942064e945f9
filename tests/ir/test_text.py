"""The text form: round trip, canonical printing, errors with carets, structural hash."""

from __future__ import annotations

import pytest

from inferc.ir.lexer import ParseError
from inferc.ir.parse import parse_func, parse_module, parse_specs
from inferc.ir.text import print_func, print_module, structural_hash

STEP = """\
func @step(%ids: i32[T], %slots: i32[T], %kv_0: cache[2, 8, 8, bf16, page=16, window=64]) \
-> (f32[T, 32], cache[2, 8, 8, bf16, page=16, window=64]) where T in 1..512 mult 2 {
  %w = param @model.embed-tokens.weight : q8_0[7, 32] loc("model.embed", "Embedding", "a.py:3")
  %h = fuse.group(%a = %w, %b = %ids) {kind = "embedding"} : f32[T, 32] {
    %e = core.embedding(%a, %b) : f32[T, 32] loc("model.embed", "Embedding")
    %c = core.constant() {values = (-2.5,), shape = (), dtype = "f32"} : f32[] loc("model")
    %m = core.mul(%e, %c) : f32[T, 32] loc(fold(["model" | "model.embed"]))
    yield %m
  } loc(fuse-elementwise("model.embed"))
  %k = core.reshape(%h) {shape = (2*T, 2, 8)} : f32[2*T, 2, 8] loc("model.k")
  %k_1 = core.slice(%k) {axis = 0, start = T, stop = 2*T} : f32[T, 2, 8] loc("model.k")
  %kv = serve.kv_append(%kv_0, %k_1, %k_1, %slots) \
: cache[2, 8, 8, bf16, page=16, window=64] loc("model.k")
  return %h, %kv
}

eliminated "model.drop" by dce: "says \\"nothing\\", \\\\ ends"
"""


def test_round_trip_with_locations() -> None:
    assert print_module(parse_module(STEP), locations=True) == STEP


def test_printing_is_canonical() -> None:
    plain = print_module(parse_module(STEP))
    assert "loc(" not in plain
    assert "eliminated" not in plain
    assert print_module(parse_module(plain)) == plain


def test_comments_and_space_do_not_matter() -> None:
    text = "func @f(%a: f32[2]) -> (f32[2]) {\n  %b = core.neg(%a) : f32[2]\n  return %b\n}\n"
    loose = "// head\nfunc @f ( %a : f32[2] )->(f32[2]){ %b=core.neg(%a):f32[2] // x\nreturn %b }"
    assert print_module(parse_module(loose)) == text


@pytest.mark.parametrize("value", ["1e-06", "1.5", "-3.0", "inf", "-inf", "1e+30", "0.1"])
def test_floats_keep_their_value(value: str) -> None:
    text = (
        "func @f() -> (f32[]) {\n"
        f'  %c = core.constant() {{values = ({value},), shape = (), dtype = "f32"}} : f32[]\n'
        "  return %c\n}\n"
    )
    assert print_module(parse_module(text)) == text
    (op,) = parse_func(text).ops
    assert op.attrs["values"] == (float(value),)


def line(body: str) -> str:
    return "func @f(%a: f32[2]) -> (f32[2]) {\n" + body + "\n  return %b\n}"


MISTAKES = {
    "undefined": (line("  %b = core.neg(%c) : f32[2]"), "%c is not defined", "%c)"),
    "unknown op": (line("  %b = core.negg(%a) : f32[2]"), "did you mean core.neg", "core.negg"),
    "types": (line("  %b = core.neg(%a) : f32[3]"), "core.neg gives f32[2]", "core.neg"),
    "twice": (line("  %a = core.neg(%a) : f32[2]"), "%a is defined twice", "core.neg"),
    "dtype": (line("  %b = core.neg(%a) : f23[2]"), "unknown dtype 'f23'", "f23"),
    "attribute": (line("  %b = core.neg(%a) {x = 1} : f32[2]"), "unknown attribute 'x'", "core"),
    "count": (line("  %b, %c = core.neg(%a) : f32[2]"), "gives 1 values, 2 are named", "core"),
    "size": (line("  %b = core.neg(%a) : f32[2*]"), "not a size", "2*]"),
    "character": (line("  %b = core.neg(%a) ; f32[2]"), "unexpected character", ";"),
    "end": (line("  %b = core.neg(%a) : f32[2]")[:-2], "found 'end of text'", ""),
    "result": ("func @f(%a: f32[2]) -> (f32[3]) {\n  return %a\n}", "declares (f32[3])", "return"),
    "range": ("func @f() -> () where B in 3..2 {\n  return\n}", "bad range 3..2", "B in"),
    "again": ("func @f() -> () {\n  return\n}\n" * 2, "@f is defined twice", ""),
    "cache": (
        "func @f(%a: cache[1, 2, 2, f32, size=3]) -> () {\n}",
        "page or window or v_in_k",
        "size",
    ),
    "whole": ("func @f(%a: cache[1.5, 2, 2, f32]) -> () {\n}", "whole number", "1.5"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_pointed_at(name: str) -> None:
    source, message, at = MISTAKES[name]
    with pytest.raises(ParseError) as caught:
        parse_module(source)
    head, shown, caret = str(caught.value).split("\n")
    assert message in head
    number = int(head.removeprefix("line ").partition(":")[0])
    assert shown == source.split("\n")[number - 1]
    assert shown[caret.index("^") :].startswith(at)


def test_exactly_one_function() -> None:
    with pytest.raises(ParseError, match="expected one function, found 0"):
        parse_func("// nothing")


def test_specs() -> None:
    assert parse_specs("a, b-c{x = 1, y = (2, 3), z = \"s\"},d{}") == [
        ("a", {}), ("b-c", {"x": 1, "y": (2, 3), "z": "s"}), ("d", {}),
    ]  # fmt: skip
    with pytest.raises(ParseError, match="expected ,"):
        parse_specs("a b")


BASE = """func @f(%a: f32[B, 4]) -> (f32[B, 4]) where B in 1..8 {
  %w = param @x.weight : f32[4] loc("x")
  %n = nn.rms_norm(%a, %w) {eps = 1e-06} : f32[B, 4] loc("x")
  return %n
}
"""


def hash_of(text: str) -> str:
    return structural_hash(parse_func(text))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("%n", "%other"), ("%a", "%q"), ("@x.weight", "@y.weight"), ("@f", "@g"),
        ('loc("x")', 'loc("y", "Norm")'),
    ],
)  # fmt: skip
def test_hash_ignores_names_and_locations(old: str, new: str) -> None:
    assert hash_of(BASE.replace(old, new)) == hash_of(BASE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("1e-06", "1e-05"), ("f32[4]", "bf16[4]"), ("1..8", "1..9"), ("1..8", "1..8 mult 2"),
        ("(%a, %w)", "(%a)"), ("nn.rms_norm", "nn.layer_norm"), ("return %n", "return %a"),
    ],
)  # fmt: skip
def test_hash_sees_structure(old: str, new: str) -> None:
    assert hash_of(BASE.replace(old, new)) != hash_of(BASE)


def test_hash_sees_which_operand() -> None:
    text = """func @f(%a: f32[4], %b: f32[4]) -> (f32[4]) {
  %c = core.sub(%a, %b) : f32[4]
  return %c
}
"""
    assert hash_of(text) != hash_of(text.replace("(%a, %b)", "(%b, %a)"))


def test_layers_hash_alike() -> None:
    module = parse_module(BASE + BASE.replace("@f", "@g").replace("x", "layers.1"))
    first, second = (structural_hash(f) for f in module)
    assert first == second


def test_print_func_numbers_equal_hints() -> None:
    func = parse_func(BASE)
    for op in func.ops:
        op.results[0].hint = "a"
    assert "%a_1 = param" in print_func(func)
    assert "%a_2 = nn.rms_norm(%a, %a_1)" in print_func(func)
