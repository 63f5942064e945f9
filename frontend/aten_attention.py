"""ATen ops of modules that write attention themselves: sdpa, mask operators, triangles, sums."""

from __future__ import annotations

import math

from inferc.frontend.aten_table import Emitter, Scalar, aten, rank, tensor, unsupported
from inferc.ir.core import Value
from inferc.ir.dims import Size, known_eq

_MASKED = -3.4e38  # below every score, and finite


@aten("aten.scaled_dot_product_attention.default")
def _sdpa(
    e: Emitter,
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    """`[B, H, S, D]`. What a mask does is found by evaluating it (pass `raise-sdpa`)."""
    if dropout_p != 0.0:
        raise unsupported("attention with dropout is not supported; call eval() on the module.")
    size = tensor(query).shape[-1]
    if rank(query) != 4 or not isinstance(size, int):
        raise unsupported(f"attention of {tensor(query)} is not supported: expected four axes.")
    factor = 1 / math.sqrt(size) if scale is None else scale
    if attn_mask is None and known_eq(tensor(query).shape[2], tensor(key).shape[2]) is True:
        moved = [e.transpose(v, (0, 2, 1, 3)) for v in (query, key, value)]
        out = e.op("nn.attention", *moved, scale=float(factor), causal=is_causal)
        return e.transpose(out, (0, 2, 1, 3))
    if attn_mask is None or is_causal:
        raise unsupported("causal attention of queries over other keys is not supported.")
    return _masked_attention(e, (query, key, value), attn_mask, float(factor))


def _masked_attention(
    e: Emitter, heads: tuple[Value, Value, Value], mask: Value, factor: float
) -> Value:
    query, key, value = heads
    key, value = (_repeated(e, v, tensor(query).shape[1]) for v in (key, value))
    scores = e.op("core.matmul", query, e.transpose(key, (0, 1, 3, 2)))
    scores = e.op("core.mul", scores, e.scalar(factor, "f32"))
    if tensor(mask).dtype == "bool":
        scores = e.op("core.where", mask, scores, e.scalar(_MASKED, "f32"))
    else:
        scores = e.op("core.add", scores, e.cast(mask, "f32"))
    return e.op("core.matmul", e.op("core.softmax", scores, axis=3), value)


def _repeated(e: Emitter, x: Value, heads: Size) -> Value:
    batch, own, length, size = tensor(x).shape
    if own == heads:
        return x
    if not isinstance(own, int) or not isinstance(heads, int) or heads % own:
        raise unsupported(f"{heads} query heads are no multiple of {own} heads of keys.")
    wide = e.reshape(x, (batch, own, 1, length, size))
    full = e.broadcast(wide, (batch, own, heads // own, length, size))
    return e.reshape(full, (batch, heads, length, size))


@aten("aten.tril.default")
def _tril(e: Emitter, x: Value, diagonal: int = 0) -> Value:
    return _triangle(e, "core.le", x, diagonal)


@aten("aten.triu.default")
def _triu(e: Emitter, x: Value, diagonal: int = 0) -> Value:
    return _triangle(e, "core.ge", x, diagonal)


def _triangle(e: Emitter, comparison: str, x: Value, diagonal: int) -> Value:
    """By comparing row and column numbers, so that it can be read as a mask."""
    rows, columns = tensor(x).shape[-2:]
    row = e.reshape(e.op("core.iota", size=rows, dtype="i64"), (rows, 1))
    column = e.reshape(e.op("core.iota", size=columns, dtype="i64"), (1, columns))
    if diagonal:
        row = e.op("core.add", row, e.scalar(diagonal, "i64"))
    dtype = tensor(x).dtype
    zero: Scalar = False if dtype == "bool" else 0
    return e.op("core.where", e.op(comparison, column, row), x, e.scalar(zero, dtype))


@aten("aten.__or__.Tensor")
def _or(e: Emitter, a: Value, b: Value) -> Value:
    return _of_bools(e, "core.logical_or", a, b)


@aten("aten.__and__.Tensor")
def _and(e: Emitter, a: Value, b: Value) -> Value:
    return _of_bools(e, "core.logical_and", a, b)


def _of_bools(e: Emitter, op_name: str, a: Value, b: Value) -> Value:
    if tensor(a).dtype != "bool" or tensor(b).dtype != "bool":
        raise unsupported("bitwise operations on integers are not supported.")
    return e.op(op_name, a, b)


@aten("aten.mT.default")
def _transposed(e: Emitter, x: Value) -> Value:
    axes = list(range(rank(x)))
    axes[-2:] = axes[:-3:-1]
    return e.transpose(x, tuple(axes))
