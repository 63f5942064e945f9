"""Keep the latent that keys and values are made of in the cache, instead of keys and values.

```
%k = concat(linear(%c, %wk) [T, H, N], broadcast %s [T, H, P])    %k = concat(%c, %s) [T, 1, R + P]
%v = linear(%c, %wv) [T, H, E]                                    %v = its first R components
%a = nn.attention(concat(%qn, %qs), %k, %v)                   ->  %q = concat(%qn wk by head, %qs)
                                                                  %l = nn.attention(%q, %k, %v)
                                                                  %a = wv %l, by head
```

Every head sees the same narrow row `[c, s]` of a token: the matrix of its keys moves to its query,
`qn . (wk c) = (wk^T qn) . c`, and that of its values behind the sum. Scores, and so scale, window,
soft-cap and sinks, stay what they were. Chosen where `[c, s]` takes fewer bytes a token than keys
and values of all heads. Prefill and decode take the same form, for a token must give the same bits
in both. Not done for biased projections, and where keys of several query heads are one. `wk` is
turned when weights are packed; in blocks, that run along `c`, it stays and its product is turned.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from inferc.ir.core import Module, Op, Value
from inferc.ir.dims import Size, product
from inferc.ir.types import CacheType
from inferc.passes.base import Pass, PassContext
from inferc.passes.driver import Edit, Pattern, apply_patterns, pattern
from inferc.passes.match import axis_attr, is_unit, made_by, same_shape, tensor
from inferc.passes.rebuild import step_funcs
from inferc.passes.unbatch import rows_of

PATTERN = "latent-attention"
_TURNED = ("f32", "bf16", "f16")  # stored types whose matrices packing turns
_Made = dict[tuple[Value, Value], tuple[Value, Value]]  # (c, s) to keys and values


@dataclass(frozen=True)
class LatentAttention(Pass):
    """Attention whose keys and values are linear in a shared narrow row reads that row."""

    name = "latent-attention"
    requires = frozenset({"flat"})

    def run(self, module: Module, context: PassContext) -> None:
        """Rewrite the step functions that have no cache yet."""
        for func in step_funcs(module):
            made: _Made = {}
            latent = Pattern(PATTERN, frozenset({"nn.attention"}), partial(_rewrite, context, made))
            apply_patterns(func, context, (latent, rows_again))


@dataclass(frozen=True)
class _Projection:
    """Heads `[T, H, D]` that are a product of rows `c` `[T, R]` with `weight` `[H * D, R]`."""

    op: Op
    c: Value
    weight: Value
    heads: int
    width: int


@dataclass(frozen=True)
class _Latent:
    """Keys are `own` beside `shared` `[T, 1, P]`; `own_first`: in that order."""

    own: _Projection
    values: _Projection
    shared: Value
    own_first: bool

    @property
    def rank(self) -> int:
        return _last(self.own.c)

    @property
    def turned(self) -> int:
        return _last(self.shared)


@pattern("core.reshape")
def rows_again(op: Op, edit: Edit) -> Value | None:
    """What attention gave as `[1, T, ..]` is read as the rows that it was made from."""
    rows = rows_of(op.operands[0])
    is_ours = made_by(rows, "nn.head_linear") is not None and rows is not op.operands[0]
    return rows if is_ours and rows.type == op.result.type else None


def _rewrite(context: PassContext, made: _Made, op: Op, edit: Edit) -> Value | None:
    latent = _match(op)
    if latent is None:
        return None
    heads, rank, width = latent.own.heads, latent.rank, latent.rank + latent.turned
    cache = CacheType(1, width, rank, "f32", v_in_k=True)
    plain = CacheType(heads, latent.own.width + latent.turned, latent.values.width, "f32")
    reason = _refusal(op, latent, cache, plain)
    if reason is not None:
        edit.refuse(reason)
        return None
    edit.covers(latent.own.op, latent.values.op)
    keys, values = _keys(latent, made, edit)
    query = _query(rows_of(op.operands[0]), latent, edit)
    batch = (edit.op("core.reshape", x, shape=(1, *tensor(x).shape)) for x in (query, keys, values))
    summed = edit.like(op, *batch, *op.operands[3:])
    rows = edit.op("core.reshape", summed, shape=tensor(summed).shape[1:])
    matrices = _matrices(latent.values, edit)
    out = edit.op("nn.head_linear", rows, matrices, hint=op.result.hint)
    _note(context, op, cache, plain)
    return edit.op("core.reshape", out, shape=tensor(op.result).shape)


def _note(context: PassContext, op: Op, cache: CacheType, plain: CacheType) -> None:
    context.note(
        f"latent in the pages: {cache.k_dim} numbers a token, "
        f"{plain.kv_heads * (plain.k_dim + plain.v_dim)} as keys and values"
    )


# -- matching
def _match(op: Op) -> _Latent | None:
    """What keys and values are made of; None if it is anything else."""
    k, v = rows_of(op.operands[1]), rows_of(op.operands[2])
    values, joined = _projection(v), made_by(k, "core.concat")
    if values is None or joined is None or len(joined.operands) != 2:
        return None
    if axis_attr(joined) != tensor(k).rank - 1:
        return None
    for own, other in (joined.operands, reversed(joined.operands)):
        keys, shared = _projection(own), _shared(other)
        if keys is not None and shared is not None and keys.c is values.c:
            return _Latent(keys, values, shared, own is joined.operands[0])
    return None


def _projection(value: Value) -> _Projection | None:
    """Reads `value` `[T, H, D]` as heads of a linear of plain rows."""
    shape, op = tensor(value).shape, made_by(_viewed(value), "core.linear")
    if op is None or len(shape) != 3:
        return None
    c = op.operands[0]
    while (view := made_by(c, "core.reshape")) is not None and _last(view.operands[0]) == _last(c):
        c = view.operands[0]
    heads, width = shape[1:]
    first, *middle, _ = tensor(c).shape
    is_rows = same_shape((first,), shape[:1]) and all(map(is_unit, middle))
    if not is_rows or not isinstance(heads, int) or not isinstance(width, int):
        return None
    return _Projection(op, c, op.operands[1], heads, width)


def _viewed(value: Value) -> Value:
    while (view := made_by(value, "core.reshape")) is not None:
        value = view.operands[0]
    return value


def _shared(value: Value) -> Value | None:
    """The `[T, 1, P]` that all heads have."""
    op = made_by(value, "core.broadcast_to")
    if op is None:
        return None
    shape, wide = tensor(op.operands[0]).shape, tensor(value).shape
    fits = len(shape) == 3 and is_unit(shape[1]) and same_shape(shape[::2], wide[::2])
    return op.operands[0] if fits else None


def _last(value: Value) -> int:
    size = tensor(value).shape[-1]
    assert isinstance(size, int)
    return size


def _refusal(op: Op, latent: _Latent, cache: CacheType, plain: CacheType) -> str | None:
    heads = tensor(op.operands[0]).shape[2]
    if heads != latent.own.heads:
        return f"{heads} query heads share {latent.own.heads} heads of keys"
    if any(len(p.op.operands) == 3 for p in (latent.own, latent.values)):
        return "the projection of the latent has a bias"
    if cache.bytes_per_token >= plain.bytes_per_token:
        return (
            f"the latent takes {cache.k_dim} numbers a token, keys and values "
            f"{plain.kv_heads * (plain.k_dim + plain.v_dim)}"
        )
    weight = tensor(latent.own.weight)
    if not weight.is_block and weight.dtype not in _TURNED:
        return f"no product reads heads of {weight.dtype} the other way"
    return None


# -- making
def _keys(latent: _Latent, made: _Made, edit: Edit) -> tuple[Value, Value]:
    """The row `[c, s]` of a token, as one head, and its `c`; shared by attention on the same."""
    c, shared = latent.own.c, latent.shared
    if (c, shared) not in made:
        shape = (tensor(c).shape[0], 1, latent.rank)
        is_head = same_shape(tensor(c).shape, shape)
        head = c if is_head else edit.op("core.reshape", c, shape=shape)
        keys = edit.op("core.concat", head, shared, axis=2, hint="latent")
        made[c, shared] = keys, edit.op("core.slice", keys, axis=2, start=0, stop=latent.rank)
    return made[c, shared]


def _matrices(projection: _Projection, edit: Edit) -> Value:
    """The weight as `[H, D, R]`."""
    rank = _last(projection.c)
    shape: tuple[Size, ...] = (projection.heads, projection.width, rank)
    assert product(shape) == tensor(projection.weight).elements
    return edit.op("core.reshape", projection.weight, shape=shape)


def _query(q: Value, latent: _Latent, edit: Edit) -> Value:
    """The query `[T, H, R + P]` for the keys `[c, s]`."""
    own, turned = _parts(q, latent, edit)
    matrices = _matrices(latent.own, edit)
    if tensor(matrices).is_block:
        absorbed = edit.op("nn.head_linear", own, matrices, turned=True)
    else:
        matrices = edit.op("core.transpose", matrices, perm=(0, 2, 1))
        absorbed = edit.op("nn.head_linear", own, matrices)
    return edit.op("core.concat", absorbed, turned, axis=2, hint=q.hint)


def _parts(q: Value, latent: _Latent, edit: Edit) -> tuple[Value, Value]:
    """What of the query meets a head's own keys, and what meets the shared ones."""
    widths = (latent.own.width, latent.turned)
    widths = widths if latent.own_first else widths[::-1]
    joined = made_by(q, "core.concat")
    if joined is not None and tuple(tensor(x).shape[-1] for x in joined.operands) == widths:
        edit.covers(joined)
        parts = list(joined.operands)
    else:
        spans = ((0, widths[0]), (widths[0], sum(widths)))
        parts = [edit.op("core.slice", q, axis=2, start=a, stop=b) for a, b in spans]
    return (parts[0], parts[1]) if latent.own_first else (parts[1], parts[0])
