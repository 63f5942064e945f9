"""Costs against counts done by hand."""

from __future__ import annotations

import pytest

from inferc.ir.core import Func
from inferc.ir.cost import Cost, Workload, func_cost, must_move, op_cost, traffic_ratio
from inferc.ir.dims import Size, parse_size
from inferc.ir.parse import parse_func

STEP = """\
func @decode(%ids: i32[R], %positions: i32[R], %slots: i32[R], %starts: i32[R + 1], \
%contexts: i32[R], %tables: i32[R, P], %kv_0: cache[2, 8, 4, bf16, page=16]) \
-> (f32[R, 100], cache[2, 8, 4, bf16, page=16]) where R in 1..8, P in 1..64 {
  %table = param @embed : q8_0[100, 32]
  %wq = param @wq : bf16[32, 32]
  %x = fuse.group(%t = %table, %i = %ids) {kind = "embedding"} : f32[R, 32] {
    %e = core.embedding(%t, %i) : f32[R, 32]
    yield %e
  }
  %qkv = fuse.group(%a = %x, %w = %wq) {kind = "linear"} : f32[R, 32] {
    %l = core.linear(%a, %w) : f32[R, 32]
    yield %l
  }
  %q, %kv = fuse.group(%b = %qkv, %c = %kv_0, %s = %slots) {kind = "rope_append"} : \
f32[R, 2, 8], cache[2, 8, 4, bf16, page=16] {
    %qs = core.slice(%b) {axis = 1, start = 0, stop = 16} : f32[R, 16]
    %qr = core.reshape(%qs) {shape = (R, 2, 8)} : f32[R, 2, 8]
    %vs = core.slice(%b) {axis = 1, start = 16, stop = 24} : f32[R, 8]
    %vr = core.reshape(%vs) {shape = (R, 2, 4)} : f32[R, 2, 4]
    %k = serve.kv_append(%c, %qr, %vr, %s) : cache[2, 8, 4, bf16, page=16]
    yield %qr, %k
  }
  %o = fuse.group(%d = %q, %k2 = %kv, %p = %positions, %st = %starts, %cl = %contexts, \
%bt = %tables) {kind = "attention"} : f32[R, 2, 4] {
    %at = serve.paged_attention(%d, %k2, %p, %st, %cl, %bt) {scale = 0.5} : f32[R, 2, 4]
    yield %at
  }
  %flat = core.reshape(%o) {shape = (R, 8)} : f32[R, 8]
  %pad = fuse.group(%f = %flat, %x2 = %x) {kind = "elementwise"} : f32[R, 32] {
    %n = core.add(%x2, %x2) : f32[R, 32]
    yield %n
  }
  %logits = fuse.group(%h = %pad, %w2 = %HEAD) {kind = "linear"} : f32[R, 100] {
    %lg = core.linear(%h, %w2) : f32[R, 100]
    yield %lg
  }
  return %logits, %kv
}
"""
HEAD = "  %head = param @head : q8_0[100, 32]\n  %wq = param"


def step(*, tied: bool) -> Func:
    if tied:
        return parse_func(STEP.replace("%HEAD", "%table"))
    return parse_func(STEP.replace("%HEAD", "%head").replace("  %wq = param", HEAD))


def costs(func: Func) -> list[Cost]:
    return [op_cost(op) for op in func.ops if op.body is not None]


def size(text: str) -> Size:
    return parse_size(text)


def test_a_lookup_reads_rows_only() -> None:
    # 32 values are 34 bytes as q8_0; the id is 4 bytes; the row is written as 32 floats.
    assert costs(step(tied=True))[0] == Cost(0, size("38*R"), size("128*R"))


def test_a_linear_reads_its_weight_once() -> None:
    assert costs(step(tied=True))[1] == Cost(size("2048*R"), size("128*R + 2048"), size("128*R"))


def test_partial_reads_add_up_and_an_append_writes_tokens() -> None:
    # 16 + 8 of 32 floats and a slot; q is written, and 2 heads of 8 + 4 bf16 values.
    assert costs(step(tied=True))[2] == Cost(0, size("100*R"), size("64*R + 48*R"))


def test_attention_reads_the_context() -> None:
    cost = costs(step(tied=True))[3]
    # q 64, positions 4, starts 4R + 4, contexts 4, tables 4P, and 48 bytes for a cached token
    assert cost.bytes_read == size("76*R + 4 + 4*R*P + 48*R*C")
    assert cost.bytes_written == size("32*R")
    assert cost.flops == size("2*R*A") * (2 * 12 + 10)


def test_an_unread_operand_costs_nothing() -> None:
    assert costs(step(tied=True))[4] == Cost(size("32*R"), size("128*R"), size("128*R"))


def test_must_move() -> None:
    moved = must_move(step(tied=False))
    weights = size("34*R + 2048 + 3400")
    inputs = size("4*R + 4*R + 4*R + 4*R + 4 + 4*R + 4*R*P")
    assert moved.bytes_read == weights + inputs + size("48*R*H")
    assert moved.bytes_written == size("400*R + 48*R")
    tied = must_move(step(tied=True))  # the table is read once, whole, by the head
    assert tied.bytes_read == moved.bytes_read - size("34*R")


def test_func_cost_is_the_sum() -> None:
    func = step(tied=False)
    total = Cost()
    for cost in costs(func):
        total = total + cost
    assert func_cost(func) == total
    bindings = Workload.decode(2, 100).bindings()
    ratio = total.at(bindings).bytes_moved / must_move(func).at(bindings).bytes_moved  # type: ignore[operator]
    assert traffic_ratio(func, bindings) == pytest.approx(ratio)
    assert ratio > 1


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        (Workload.decode(4, 100), {"T": 4, "R": 4, "L": 4, "P": 4, "C": 100, "H": 99, "A": 100}),
        (Workload.decode(4, 100), {"C_64": 64, "H_64": 63, "A_64": 64, "C_512": 100}),
        (Workload.prefill(100), {"T": 100, "R": 1, "C": 100, "H": 0, "A": 51}),
        (Workload.prefill(100), {"C_64": 100, "H_64": 0, "A_64": 51, "A_8": 8}),
        (Workload(20, 2, 100), {"C": 100, "H": 90, "A": 96, "C_8": 17, "H_8": 7}),
    ],
)
def test_workloads(workload: Workload, expected: dict[str, int]) -> None:
    bindings = workload.bindings()
    assert {name: bindings[name] for name in expected} == expected


def test_unknown_symbol_is_named() -> None:
    with pytest.raises(KeyError, match="C_x"):
        Workload.decode(1, 8).bindings()["C_x"]


def test_windows_have_their_own_symbol() -> None:
    func = parse_func(
        STEP.replace("%HEAD", "%table").replace("scale = 0.5", "scale = 0.5, window = 64")
    )
    assert "C_64" in str(costs(func)[3].bytes_read)
    assert "H_64" in str(must_move(func).bytes_read)


def test_a_value_read_twice_moves_once() -> None:
    func = parse_func(
        "func @f(%x: f32[4]) -> (f32[4]) {\n  %a = core.mul(%x, %x) : f32[4]\n  return %a\n}"
    )
    assert op_cost(func.ops[0]) == Cost(4, 16, 16)


def test_experts_read_what_rows_are_expected_to_choose() -> None:
    func = parse_func(
        "func @f(%x: f32[T, 8], %i: i64[T, 2], %w: f32[T, 2]) -> (f32[T, 8]) where T in 1..64 {\n"
        "  %g = param @g : bf16[16, 4, 8]\n  %u = param @u : bf16[16, 4, 8]\n"
        "  %d = param @d : bf16[16, 8, 4]\n"
        '  %y = nn.experts(%x, %i, %w, %g, %u, %d) {activation = "silu"} : f32[T, 8]\n'
        "  return %y\n}"
    )
    expert, row = 3 * 2 * 4 * 8, 8 * 4 + 2 * 8 + 2 * 4
    for tokens, touched in ((1, 2), (2, 4), (4, 7), (1000, 16)):
        cost = func_cost(func).at(Workload.prefill(tokens).bindings())
        assert cost.bytes_read == touched * expert + tokens * row
    assert touched == 16
