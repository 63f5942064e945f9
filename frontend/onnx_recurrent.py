"""Linear attention and causal convolution of ONNX opset 27, and what older graphs write for it.

Our cards begin with a state of zeros. A state that is given is put before the tokens: the last
inputs of a convolution as they are, the state of linear attention by tokens that write one row
each. The state that comes out is read in the same ways.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from inferc.errors import CompileError
from inferc.frontend.aten_table import tensor
from inferc.frontend.onnx_shape import joined
from inferc.frontend.onnx_table import Node, OnnxEmitter, Results, onnx_op, shape_of
from inferc.frontend.onnx_values import Filled, Item
from inferc.ir.core import Value
from inferc.ir.dims import product

_ACTIVATIONS = {"none": "none", "silu": "silu", "swish": "silu"}


@onnx_op("CausalConvWithState")
def _causal_conv(e: OnnxEmitter, n: Node) -> Results:
    """Input `[B, C, S]`, weight `[C, 1, K]`, past `[B, C, K - 1]`."""
    name = n.attr("activation", "none")
    if name not in _ACTIVATIONS:
        raise CompileError(f"activation = {name!r} is not supported.")
    past, weight = n.optional(3), e.value(n.input(1))
    before = _ints(e, weight)[2] - 1
    if past is not None and not _is_zero(past):
        rows = joined(e, [past, n.input(0)], 2)
        out = _convolved(e, e.value(rows), weight, n.optional(2), _ACTIVATIONS[name])
        out = e.slice(out, 2, before, tensor(out).shape[2])
    else:
        out = _convolved(e, e.value(n.input(0)), weight, n.optional(2), _ACTIVATIONS[name])
    return (out, _last(e, n.input(0), past, before)) if n.wants(1) else out


def _last(e: OnnxEmitter, x: Item, past: Item | None, count: int) -> Item:
    """The last inputs: the state after the tokens."""
    batch, channels, length = shape_of(x)
    given = past if past is not None else Filled(0.0, (batch, channels, count), "f32")
    whole = e.value(joined(e, [given, x], 2))
    return e.slice(whole, 2, length, length + count)


def _convolved(
    e: OnnxEmitter, x: Value, weight: Value, bias: Item | None, activation: str
) -> Value:
    """`[B, C, S]`, each channel over its last K inputs, zeros before the first."""
    channels, one, count = _ints(e, weight)
    if one != 1:
        raise CompileError("a convolution over several channels is not supported.")
    taps = e.transpose(e.reshape(weight, (channels, count)), (1, 0))
    operands = [e.transpose(x, (0, 2, 1)), taps, *([] if bias is None else [e.value(bias)])]
    return e.transpose(e.op("nn.causal_conv1d", *operands, activation=activation), (0, 2, 1))


@onnx_op("Conv")
def _conv(e: OnnxEmitter, n: Node) -> Item:
    """Along a sequence, each channel alone; zeros before it, or nothing."""
    x, weight = e.value(n.input(0)), e.value(n.input(1))
    if len(tensor(weight).shape) != 3:
        raise CompileError("a convolution over more than one axis is not supported.")
    channels, _, count = _ints(e, weight)
    n.only(group=channels, strides=[1], dilations=[1], auto_pad="NOTSET")
    pads = n.attr("pads", [0, 0])
    if pads not in ([0, 0], [count - 1, 0]):
        raise CompileError(f"pads = {pads} is not supported (only {[count - 1, 0]} and [0, 0]).")
    out = _convolved(e, x, weight, n.optional(2), "none")
    return out if pads[0] else e.slice(out, 2, count - 1, tensor(out).shape[2])


@dataclass(frozen=True)
class _Rows:
    """q, k `[B, S, H, K]`, v `[B, S, H, V]`, decay `[B, S, H, 1 or K]`, beta `[B, S, H]`."""

    query: Value
    key: Value
    value: Value
    decay: Value
    beta: Value

    @property
    def parts(self) -> tuple[Value, ...]:
        """In the order of the card's operands."""
        return self.query, self.key, self.value, self.decay, self.beta


@onnx_op("LinearAttention")
def _linear_attention(e: OnnxEmitter, n: Node) -> Results:
    rule = n.attr("update_rule", "gated_delta")
    if rule not in ("linear", "gated", "delta", "gated_delta"):
        raise CompileError(f"update_rule = {rule!r} is not supported.")
    rows, past, scale = _rows(e, n, rule), n.optional(3), n.attr("scale", 0.0)
    size = _ints(e, rows.query)[3]
    before = [] if past is None or _is_zero(past) else [_writing(e, rows, e.value(past))]
    out = _run(e, rule, [*before, rows])
    out = e.slice(out, 1, size * len(before), tensor(out).shape[1])
    out = e.emit("mul", out, e.scalar(scale or 1 / math.sqrt(size), "f32"))
    batch, length, heads, columns = tensor(out).shape
    result = e.reshape(out, (batch, length, heads * columns))
    if not n.wants(1):
        return result
    return result, _state(e, n, rule, [*before, rows])


def _rows(e: OnnxEmitter, n: Node, rule: str) -> _Rows:
    """The rows of every query head; heads of keys are repeated."""
    heads, groups = n.attr("q_num_heads"), n.attr("kv_num_heads")

    def split(index: int, count: int) -> Value:
        x = e.value(n.input(index))
        batch, length, hidden = tensor(x).shape
        assert isinstance(hidden, int)
        if hidden % count:
            raise CompileError(f"its input {index} {x.type} cannot be split into {count} heads.")
        return e.reshape(x, (batch, length, count, hidden // count))

    query = split(0, heads)
    batch, length = tensor(query).shape[:2]
    none = e.broadcast(e.scalar(0.0, "f32"), (batch, length, groups, 1))
    decay = split(4, groups) if rule.startswith("gated") else none
    plain = e.reshape(none, (batch, length, groups))
    beta = e.value(n.input(5)) if rule.endswith("delta") else plain
    beta = e.broadcast(beta, (batch, length, groups))
    rest = [_repeated(e, x, heads) for x in (split(1, groups), split(2, groups), decay)]
    wide = _repeated(e, e.reshape(beta, (batch, length, groups, 1)), heads)
    return _Rows(query, *rest, e.reshape(wide, (batch, length, heads)))


def _repeated(e: OnnxEmitter, x: Value, heads: int) -> Value:
    """`[B, S, G, D]` to `[B, S, H, D]`."""
    batch, length, groups, size = tensor(x).shape
    if groups == heads:
        return x
    assert isinstance(groups, int)
    one_more = e.reshape(x, (batch, length, groups, 1, size))
    full = e.broadcast(one_more, (batch, length, groups, heads // groups, size))
    return e.reshape(full, (batch, length, heads, size))


def _run(e: OnnxEmitter, rule: str, pieces: list[_Rows]) -> Value:
    """The card over the pieces one after the other: `[B, S, H, V]`."""
    columns = zip(*(p.parts for p in pieces), strict=True)
    query, key, value, decay, beta = (
        c[0] if len(c) == 1 else e.emit("concat", *c, axis=1) for c in columns
    )
    if rule.endswith("delta"):
        return e.op("nn.gated_delta_rule", query, key, value, decay, beta)
    if rule == "gated":
        return _gated(e, query, key, value, decay)
    batch, length, heads, _ = tensor(value).shape
    ones = e.broadcast(e.scalar(1.0, "f32"), (batch, length, heads))
    rate = e.broadcast(e.scalar(0.0, "f32"), (heads,))
    return e.op("nn.ssd_scan", value, ones, key, query, rate)


def _gated(e: OnnxEmitter, query: Value, key: Value, value: Value, decay: Value) -> Value:
    """H = exp(g) h + k v, a channel for every element of the state."""
    batch, length, heads, size = tensor(key).shape
    columns = tensor(value).shape[3]
    state = (batch, length, heads, size, columns)
    flat = (batch, length, product(state[2:]))
    column = (batch, length, heads, size, 1)
    row = e.reshape(value, (batch, length, heads, 1, columns))
    added = e.emit("mul", e.reshape(key, column), row)
    gate = e.reshape(e.emit("exp", decay), (*state[:3], tensor(decay).shape[3], 1))
    operands = [e.reshape(v, flat) for v in (added, e.broadcast(gate, state))]
    states = e.reshape(e.op("nn.linear_scan", *operands), state)
    read = e.emit("mul", e.reshape(query, column), states)
    return e.emit("sum", read, axes=(3,), keepdim=False)


def _writing(e: OnnxEmitter, rows: _Rows, state: Value) -> _Rows:
    """K tokens that make a state of zeros into `[B, G, K, V]`: token i writes row i."""
    heads = _ints(e, rows.query)[2]
    return _unit_rows(e, rows, _repeated(e, e.transpose(state, (0, 2, 1, 3)), heads), True)


def _state(e: OnnxEmitter, n: Node, rule: str, pieces: list[_Rows]) -> Value:
    """The state `[B, G, K, V]` after the tokens: K more of them read a row each."""
    last, groups = pieces[-1], n.attr("kv_num_heads")
    batch, _, heads, size = tensor(last.query).shape
    columns = tensor(last.value).shape[3]
    assert isinstance(heads, int)
    none = e.broadcast(e.scalar(0.0, "f32"), (batch, size, heads, columns))
    out = _run(e, rule, [*pieces, _unit_rows(e, last, none, False)])
    end = tensor(out).shape[1]
    found = e.transpose(e.slice(out, 1, end - size, end), (0, 2, 1, 3))
    return e.slice(found, 1, 0, heads, heads // groups)


def _unit_rows(e: OnnxEmitter, rows: _Rows, value: Value, writes: bool) -> _Rows:
    """K tokens whose queries, and keys if they write, are the unit vectors; nothing decays."""
    batch, _, heads, size = tensor(rows.query).shape
    counted = e.emit("iota", size=size, dtype="i64")
    same = e.emit("eq", e.reshape(counted, (size, 1)), e.reshape(counted, (1, size)))
    unit = e.reshape(e.cast(same, "f32"), (1, size, 1, size))
    units = e.broadcast(unit, (batch, size, heads, size))
    zero, one = e.scalar(0.0, "f32"), e.scalar(1.0 if writes else 0.0, "f32")
    key = units if writes else e.broadcast(zero, (batch, size, heads, size))
    decay = e.broadcast(zero, (batch, size, heads, tensor(rows.decay).shape[3]))
    return _Rows(units, key, value, decay, e.broadcast(one, (batch, size, heads)))


def _ints(e: OnnxEmitter, x: Value) -> list[int]:
    """Sizes of a tensor, -1 for those that are not numbers."""
    return [s if isinstance(s, int) else -1 for s in tensor(x).shape]


def _is_zero(item: Item) -> bool:
    return isinstance(item, Filled) and item.value == 0.0
