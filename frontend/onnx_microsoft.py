"""Operators of the com.microsoft domain that say what ours say: attention and rotary embedding."""

from __future__ import annotations

import math
from itertools import pairwise

from inferc.errors import CompileError
from inferc.frontend.aten_table import rank, tensor
from inferc.frontend.onnx_attention import (
    Heads,
    Rotary,
    Scores,
    attend,
    cache_rows,
    is_empty,
    merge_heads,
    rotate,
    split_heads,
)
from inferc.frontend.onnx_table import MICROSOFT, Node, OnnxEmitter, Results, onnx_op
from inferc.frontend.onnx_values import Filled, Item, Known
from inferc.ir.core import Value
from inferc.ir.dims import Size


@onnx_op("RotaryEmbedding", domain=MICROSOFT)
def _rotary(e: OnnxEmitter, n: Node) -> Item:
    n.only(is_packed_batching=0, scale=1.0)
    x, positions = e.value(n.input(0)), n.input(1)
    cos, sin = e.value(n.input(2)), e.value(n.input(3))
    dims = n.attr("rotary_embedding_dim", 0)
    heads = n.attr("num_heads", 0)
    if rank(x) == 3 and not heads:
        size, half = tensor(x).shape[2], tensor(cos).shape[1]
        if dims or not isinstance(size, int) or not isinstance(half, int):
            raise CompileError("the number of heads is not given.")
        heads = size // (2 * half)
    split = split_heads(e, x, heads, "the input")
    tables = _tables(e, cos, sin, positions, split)
    out = rotate(e, split, *tables, Rotary(bool(n.attr("interleaved", 0)), dims))
    return merge_heads(e, out) if rank(x) == 3 else out


def _tables(
    e: OnnxEmitter, cos: Value, sin: Value, positions: Item, x: Value
) -> tuple[Value, Value]:
    """Cos and sin of each token; positions are a row of each sequence, or its offset, zero."""
    batch, _, length, _ = tensor(x).shape
    if isinstance(positions, Known | Filled) and len(positions.shape) == 1:
        if e.number(positions, "offset") != 0:
            raise CompileError("positions that do not begin at zero are not supported.")
        own: Item = token_positions(e)
    else:
        own = positions
    shape = (batch, length)
    if tensor(e.value(own)).shape != shape:
        own = e.broadcast(e.value(own), shape)
    rows = [cache_rows(e, t, own, tensor(x).shape) for t in (cos, sin)]
    return rows[0], rows[1]


def token_positions(e: OnnxEmitter) -> Value:
    """The position of each token, `[B, S]`."""
    return e.positions


@onnx_op("GroupQueryAttention", domain=MICROSOFT)
def _grouped(e: OnnxEmitter, n: Node) -> Results:
    """Causal attention with a cache, of which the plain form has none: all keys are new."""
    n.only(smooth_softmax=0, k_quant_type="NONE", v_quant_type="NONE")
    if not is_empty(n.optional(3)) or not is_empty(n.optional(4)):
        raise CompileError("its past is not known to be empty.")
    if any(n.optional(i) is not None for i in (10, 11)):
        raise CompileError("an attention bias or sinks are not supported.")
    heads, groups = n.attr("num_heads"), n.attr("kv_num_heads")
    query, key, value = _projections(e, n, heads, groups)
    _check_lengths(e, n, tensor(query).shape[2])
    if n.attr("do_rotary", 0):
        given = n.optional(9)
        tables = _tables(
            e, e.value(n.input(7)), e.value(n.input(8)),
            given if given is not None else token_positions(e), query,
        )  # fmt: skip
        how = Rotary(bool(n.attr("rotary_interleaved", 0)), 0)
        query, key = (rotate(e, v, *tables, how) for v in (query, key))
    size, window = tensor(query).shape[3], n.attr("local_window_size", -1)
    assert isinstance(size, int)
    scores = Scores(
        n.attr("scale", 0.0) or 1 / math.sqrt(size), n.attr("softcap", 0.0) or None,
        None if window < 0 else window - 1, 0,
    )  # fmt: skip
    out = attend(e, Heads(query, key, value), scores, None)
    return (merge_heads(e, out), key, value)


def _check_lengths(e: OnnxEmitter, n: Node, length: Size) -> None:
    """Every sequence must be known to be as long as its row: no padding, and no past."""
    for index, what, wanted in ((5, "seqlens_k", length - 1), (6, "total_sequence_length", length)):
        if any(e.eq(size, wanted) is not True for size in e.sizes_in(n.input(index), what)):
            raise CompileError(f"its {what} is not known to be {wanted}.")


def _projections(e: OnnxEmitter, n: Node, heads: int, groups: int) -> tuple[Value, Value, Value]:
    """Queries, keys and values; all three may come as one tensor."""
    query = e.value(n.input(0))
    if n.optional(1) is not None:
        given = (e.value(n.input(1)), e.value(n.input(2)))
        return (
            split_heads(e, query, heads, "the query"),
            split_heads(e, given[0], groups, "the key"),
            split_heads(e, given[1], groups, "the value"),
        )
    whole = split_heads(e, query, heads + 2 * groups, "the packed input")
    ends = (0, heads, heads + groups, heads + 2 * groups)
    parts = [e.slice(whole, 1, a, b) for a, b in pairwise(ends)]
    return parts[0], parts[1], parts[2]


@onnx_op("MultiHeadAttention", domain=MICROSOFT)
def _multi_head(e: OnnxEmitter, n: Node) -> Results:
    if not is_empty(n.optional(6)) or not is_empty(n.optional(7)):
        raise CompileError("its past is not known to be empty.")
    if any(n.optional(i) is not None for i in (3, 4)):
        raise CompileError("a bias or a padding mask is not supported.")
    heads = n.attr("num_heads")
    query, key, value = (
        split_heads(e, e.value(n.input(i)), heads, what)
        for i, what in enumerate(("the query", "the key", "the value"))
    )
    size = tensor(query).shape[3]
    assert isinstance(size, int)
    right = 0 if n.attr("unidirectional", 0) else None
    scores = Scores(n.attr("scale", 0.0) or 1 / math.sqrt(size), None, None, right)
    out = attend(e, Heads(query, key, value), scores, n.optional(5))
    return (merge_heads(e, out), key, value)
