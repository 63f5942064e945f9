"""Attention and rotary embedding of ONNX opsets 23 and 24.

Attention without a mask of its own is one operation. With one it is spelled out: what a mask does
is found by evaluating it (pass `raise-sdpa`), whoever wrote it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from inferc.errors import CompileError
from inferc.frontend.aten_table import rank, tensor
from inferc.frontend.onnx_shape import joined, sliced
from inferc.frontend.onnx_table import (
    Node,
    OnnxEmitter,
    Results,
    dtype_of_item,
    onnx_op,
    shape_of,
)
from inferc.frontend.onnx_values import Filled, Item
from inferc.ir.core import Value
from inferc.ir.dims import Size

MASKED = float("-inf")


@dataclass(frozen=True)
class Heads:
    """Queries `[B, H, S, D]`, keys `[B, G, T, D]`, values `[B, G, T, E]`."""

    query: Value
    key: Value
    value: Value


@dataclass(frozen=True)
class Scores:
    """How scores are made of queries and keys.

    Attributes:
        scale: Factor of the products.
        softcap: Limit of the scores.
        left: How many keys before the query's own it sees; None for all.
        right: How many keys after it; 0 is causal.
        past: Keys that come before the first query.
        valid: How many keys of each sequence are no padding, `[B, 1, 1, 1]`; None for all. The
            queries are the last of them.
    """

    scale: float
    softcap: float | None = None
    left: int | None = None
    right: int | None = None
    past: Size = 0
    valid: Value | None = None


@dataclass(frozen=True)
class Spelled:
    """Attention step by step: the result, and the scores `[B, H, S, T]` after each step."""

    result: Value
    products: Value
    capped: Value
    masked: Value
    weights: Value


def attend(e: OnnxEmitter, heads: Heads, scores: Scores, mask: Item | None) -> Value:
    """Attention, `[B, H, S, E]`."""
    queries, keys = tensor(heads.query).shape[2], tensor(heads.key).shape[2]
    whole = mask is None or (isinstance(mask, Filled) and mask.value in (True, 0.0))
    is_plain = scores.right == 0 or (scores.left is None and scores.right is None)
    if whole and is_plain and scores.valid is None and e.eq(queries, keys) is True:
        moved = [e.transpose(v, (0, 2, 1, 3)) for v in (heads.query, heads.key, heads.value)]
        out = e.op(
            "nn.attention", *moved, scale=scores.scale, causal=scores.right == 0,
            window=None if scores.left is None else scores.left + 1, softcap=scores.softcap,
        )  # fmt: skip
        return e.transpose(out, (0, 2, 1, 3))
    return spelled(e, heads, scores, mask).result


def spelled(e: OnnxEmitter, heads: Heads, scores: Scores, mask: Item | None) -> Spelled:
    """Attention in core ops."""
    query = heads.query
    key, value = (repeat_heads(e, v, tensor(query).shape[1]) for v in (heads.key, heads.value))
    out = e.emit("matmul", query, e.transpose(key, (0, 1, 3, 2)))
    out = products = e.emit("mul", out, e.scalar(scores.scale, "f32"))
    if scores.softcap is not None:
        cap = e.scalar(scores.softcap, "f32")
        out = e.emit("mul", e.emit("tanh", e.emit("div", out, cap)), cap)
    capped = out
    if mask is not None:
        out = _masked(e, out, mask)
    for seen in _window(e, tensor(out).shape[2:], scores):
        out = _masked(e, out, seen)
    weights = e.emit("softmax", out, axis=3)
    # A query that sees no key gets zeros: its softmax is no number, which differs from itself.
    weights = e.emit("where", e.emit("ne", weights, weights), e.scalar(0.0, "f32"), weights)
    return Spelled(e.emit("matmul", weights, value), products, capped, out, weights)


def _masked(e: OnnxEmitter, scores: Value, mask: Item) -> Value:
    """Keys behind the end of the mask are not seen."""
    keys, seen = tensor(scores).shape[-1], shape_of(mask)[-1]
    is_bool = dtype_of_item(mask) == "bool"
    if seen != 1 and e.eq(keys, seen) is not True:
        if e.le(seen, keys) is not True:
            raise CompileError(f"a mask of {seen} keys for {keys} keys is not supported.")
        rest = (*shape_of(mask)[:-1], keys - seen)
        unseen = Filled(False if is_bool else MASKED, rest, dtype_of_item(mask))
        mask = joined(e, [mask, unseen], len(rest) - 1)
    if is_bool:
        return e.emit("where", e.value(mask), scores, e.scalar(MASKED, "f32"))
    return e.emit("add", scores, e.value(mask, "f32"))


def _window(e: OnnxEmitter, shape: tuple[Size, ...], scores: Scores) -> list[Value]:
    """Which keys each query sees, by their distance: bool, broadcast to `[B, H, S, T]` each."""
    columns = e.reshape(e.emit("iota", size=shape[1], dtype="i64"), (1, shape[1]))
    seen = [] if scores.valid is None else [e.emit("lt", columns, scores.valid)]
    if scores.left is None and scores.right is None:
        return seen
    rows = e.reshape(e.emit("iota", size=shape[0], dtype="i64"), (shape[0], 1))
    if not isinstance(scores.past, int):
        raise CompileError(f"causal attention over a past of {scores.past} is not supported.")
    rows = _shifted(e, rows, scores.past)
    if scores.valid is not None:
        if not isinstance(shape[0], int):
            raise CompileError("padded keys (nonpad_kv_seqlen) are not supported.")
        rows = e.emit("add", rows, _shifted(e, scores.valid, -shape[0]))
    if scores.right is not None:
        seen.append(e.emit("le", columns, _shifted(e, rows, scores.right)))
    if scores.left is not None:
        seen.append(e.emit("ge", columns, _shifted(e, rows, -scores.left)))
    return seen


def _shifted(e: OnnxEmitter, x: Value, by: int) -> Value:
    return x if by == 0 else e.emit("add", x, e.scalar(by, "i64"))


def repeat_heads(e: OnnxEmitter, x: Value, heads: Size) -> Value:
    """Each of the G heads of `[B, G, S, D]` as often as there are queries for it."""
    batch, own, length, size = tensor(x).shape
    if own == heads:
        return x
    if not isinstance(own, int) or not isinstance(heads, int) or heads % own:
        raise CompileError(f"{heads} query heads are no multiple of {own} heads of keys.")
    wide = e.reshape(x, (batch, own, 1, length, size))
    full = e.broadcast(wide, (batch, own, heads // own, length, size))
    return e.reshape(full, (batch, heads, length, size))


def split_heads(e: OnnxEmitter, x: Value, heads: int | None, what: str) -> Value:
    """`[B, S, H*D]` to `[B, H, S, D]`; four axes stay as they are."""
    if rank(x) == 4:
        return x
    batch, length, hidden = tensor(x).shape
    if not heads or not isinstance(hidden, int) or hidden % heads:
        raise CompileError(f"{what} {x.type} cannot be split into {heads} heads.")
    return e.transpose(e.reshape(x, (batch, length, heads, hidden // heads)), (0, 2, 1, 3))


def merge_heads(e: OnnxEmitter, x: Value) -> Value:
    """`[B, H, S, D]` to `[B, S, H*D]`."""
    batch, heads, length, size = tensor(x).shape
    return e.reshape(e.transpose(x, (0, 2, 1, 3)), (batch, length, heads * size))


def is_empty(item: Item | None) -> bool:
    """Whether a past is left out, or has no tokens."""
    return item is None or 0 in shape_of(item)


@onnx_op("Attention")
def _attention(e: OnnxEmitter, n: Node) -> Results:
    query = split_heads(e, e.value(n.input(0)), n.attr("q_num_heads"), "the query")
    groups = n.attr("kv_num_heads")
    key = split_heads(e, e.value(n.input(1)), groups, "the key")
    value = split_heads(e, e.value(n.input(2)), groups, "the value")
    past: Size = 0
    past_key, past_value = n.optional(4), n.optional(5)
    if past_key is not None and past_value is not None and not is_empty(past_key):
        past = shape_of(past_key)[2]
        key = e.emit("concat", e.value(past_key), key, axis=2)
        value = e.emit("concat", e.value(past_value), value, axis=2)
    heads, scores, mask = Heads(query, key, value), _scores(e, n, query, past), n.optional(3)
    out = attend(e, heads, scores, mask)
    if len(shape_of(n.input(0))) == 3:
        out = merge_heads(e, out)
    if not n.wants(3):
        return out, key, value
    return out, key, value, _step(n, spelled(e, heads, scores, mask))


def _step(n: Node, steps: Spelled) -> Value:
    """The scores that the fourth output asks for."""
    wanted = (steps.products, steps.capped, steps.masked, steps.weights)
    return wanted[n.attr("qk_matmul_output_mode", 0)]


def _scores(e: OnnxEmitter, n: Node, query: Value, past: Size) -> Scores:
    size = tensor(query).shape[3]
    assert isinstance(size, int)
    left, right = n.attr("left_window_size", -1), n.attr("right_window_size", -1)
    if n.attr("is_causal", 0):
        right = 0
    lengths = n.optional(6)
    valid = None
    if lengths is not None:
        valid = e.reshape(e.value(lengths, "i64"), (tensor(query).shape[0], 1, 1, 1))
    return Scores(
        n.attr("scale") or 1 / math.sqrt(size), n.attr("softcap", 0.0) or None,
        None if left < 0 else left, None if right < 0 else right, past, valid,
    )  # fmt: skip


@dataclass(frozen=True)
class Rotary:
    """How pairs of a head's dims are rotated; `dims` of each head take part."""

    interleaved: bool
    dims: int


@onnx_op("RotaryEmbedding")
def _rotary(e: OnnxEmitter, n: Node) -> Item:
    x = e.value(n.input(0))
    heads = split_heads(e, x, n.attr("num_heads"), "the input")
    cos, sin = (
        cache_rows(e, e.value(n.input(i)), n.optional(3), tensor(heads).shape) for i in (1, 2)
    )
    dims = n.attr("rotary_embedding_dim", 0)
    out = rotate(e, heads, cos, sin, Rotary(bool(n.attr("interleaved", 0)), dims))
    return merge_heads(e, out) if rank(x) == 3 else out


def cache_rows(
    e: OnnxEmitter, cache: Value, positions: Item | None, shape: tuple[Size, ...]
) -> Value:
    """Cos or sin of each token, `[B, S, R/2]`."""
    if positions is not None:
        return e.emit("embedding", cache, e.value(positions))
    if rank(cache) != 3:
        raise CompileError(f"a table {cache.type} without positions is not supported.")
    return cache


def rotate(e: OnnxEmitter, x: Value, cos: Value, sin: Value, how: Rotary) -> Value:
    """Rotate the first dims of every head of `[B, H, S, D]`, by tables `[B, S, R/2]`."""
    size, half = tensor(x).shape[3], tensor(cos).shape[2]
    if not isinstance(size, int) or not isinstance(half, int):
        raise CompileError(f"the sizes of {x.type} and {cos.type} are not known.")
    dims = how.dims or 2 * half
    if dims > 2 * half or dims > size:
        raise CompileError(f"{dims} of {size} dims are rotated by tables of {half} columns.")
    cos, sin = (e.value(sliced(e, _per_head(e, t), 3, 0, dims // 2)) for t in (cos, sin))
    if how.interleaved:
        first, second = (e.slice(x, 3, i, dims, 2) if dims > 1 else x for i in (0, 1))
    else:
        first, second = e.slice(x, 3, 0, dims // 2), e.slice(x, 3, dims // 2, dims)
    a = e.emit("sub", e.emit("mul", first, cos), e.emit("mul", second, sin))
    b = e.emit("add", e.emit("mul", second, cos), e.emit("mul", first, sin))
    turned = _joined(e, a, b, dims, how.interleaved)
    if dims == size:
        return turned
    return e.emit("concat", turned, e.slice(x, 3, dims, size), axis=3)


def _per_head(e: OnnxEmitter, table: Value) -> Value:
    batch, length, half = tensor(table).shape
    return e.reshape(table, (batch, 1, length, half))


def _joined(e: OnnxEmitter, a: Value, b: Value, dims: int, interleaved: bool) -> Value:
    if not interleaved:
        return e.emit("concat", a, b, axis=3)
    shape = tensor(a).shape
    pair = [e.reshape(v, (*shape, 1)) for v in (a, b)]
    return e.reshape(e.emit("concat", *pair, axis=4), (*shape[:3], dims))
