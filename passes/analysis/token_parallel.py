"""Which axes of a value run over tokens, and which ops mix positions.

An op acts on each token alone if row t of its result is a function of row t of its operands only.
Such ops may be flattened, batched with other sequences and cut into chunks; ops that mix positions
(attention) need state. Everything is read off shapes and the meaning of ops, nothing off names. An
op that cannot be shown to be of either sort is a CompileError that names it and its module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from inferc.errors import CompileError
from inferc.ir.core import Func, Op, Value
from inferc.ir.dims import Dim, Size, known_eq, product
from inferc.ir.ops.elementwise import ELEMENTWISE
from inferc.ir.ops.recurrent import SERVED, WHOLE
from inferc.ir.types import TensorType
from inferc.passes.match import attention_mask

MIXING = frozenset(
    {"nn.attention", "serve.paged_attention", "serve.kv_append", "serve.k_append", *WHOLE, *SERVED}
)
Axes = tuple[int, ...]
"""Token axes of a value: one axis a symbol of `ids` in that order, or one axis for their product.
Empty: the value is the same for all tokens."""


@dataclass(frozen=True)
class TokenParallel:
    """Result of the analysis."""

    tokens: tuple[Size, ...]  # sizes of the token axes: (B, S) of a plain graph, (T,) of a flat one
    axes: Mapping[Value, Axes]
    mixing: tuple[Op, ...]  # the ops that mix positions, in order


class _Mixes(Exception):
    """An op is not token-parallel; the text says why."""


def analyze_token_parallel(func: Func) -> TokenParallel:
    """Analyse a function whose first argument holds the token ids.

    Raises:
        CompileError: an op mixes positions in a way that no state of ours stands for.
    """
    ids = func.args[0].type
    assert isinstance(ids, TensorType)
    rules = _Rules(ids.shape)
    axes: dict[Value, Axes] = {arg: rules.find(shape_of(arg)) or () for arg in func.args}
    mixing: list[Op] = []
    for op in func.ops:
        try:
            found = rules.of(op, [axes[v] for v in op.operands])
        except _Mixes as reason:
            raise mixing_error(op, str(reason)) from None
        axes.update(dict.fromkeys(op.results, found))
        if op.name in MIXING:
            mixing.append(op)
    for result in func.results:
        if isinstance(result.type, TensorType) and axes[result] != tuple(range(len(ids.shape))):
            raise CompileError(
                f"@{func.name} must return logits for each token ({ids.shape} first), "
                f"found {result.type}."
            )
    return TokenParallel(ids.shape, axes, tuple(mixing))


def shape_of(value: Value) -> tuple[Size, ...]:
    """Shape of a tensor; a cache has none."""
    return value.type.shape if isinstance(value.type, TensorType) else ()


def mixing_error(op: Op, reason: str) -> CompileError:
    """The error for an op that mixes positions in a way that no state of ours stands for."""
    roots = op.loc.roots()
    where = roots[0].path if roots else "an unknown module"
    types = ", ".join(str(v.type) for v in op.operands)
    return CompileError(
        f"{op.name}({types}) in {where} mixes positions: {reason}. Only causal attention and "
        "known recurrences may do so; this model cannot be served token by token."
    )


def attention_refusal(op: Op) -> str | None:
    """Why an nn.attention cannot be paged; None if it can."""
    if attention_mask(op) is not None:
        return "its mask is not known to be causal, windowed or absent"
    if op.attrs["causal"] is not True:
        return "it is not causal, so that a token would see later ones"
    return None


class _Rules:
    def __init__(self, tokens: tuple[Size, ...]) -> None:
        self.tokens = tokens
        self.symbols = frozenset(s for t in tokens if isinstance(t, Dim) for s in t.symbols())

    def of(self, op: Op, axes: Sequence[Axes]) -> Axes:
        """Token axes of all results of an op."""
        if op.name in ELEMENTWISE or op.name == "nn.glu":
            return self.broadcast(op, axes)
        rule = _RULES.get(op.name)
        if rule is not None:
            return rule(self, op, axes)
        if any(axes):
            raise _Mixes("nothing is known about how it treats the token axis")
        return self.free(op)

    def find(self, shape: tuple[Size, ...]) -> Axes | None:
        """The axes whose sizes are those of the tokens, in order; None if they are not there."""
        symbolic = [i for i, size in enumerate(shape) if isinstance(size, Dim)]
        for wanted in (self.tokens, (product(self.tokens),)):
            if [shape[i] for i in symbolic] == list(wanted):
                return tuple(symbolic)
        return None if symbolic else ()

    def free(self, op: Op) -> Axes:
        for result in op.results:
            sizes = [s for s in shape_of(result) if isinstance(s, Dim)]
            if any(self.symbols & size.symbols() for size in sizes):
                raise _Mixes("its values depend on the place in the row, not on `positions`")
        return ()

    def broadcast(self, op: Op, axes: Sequence[Axes]) -> Axes:
        rank = len(shape_of(op.results[0]))
        pairs = zip(op.operands, axes, strict=True)
        shifted = {tuple(a + rank - len(shape_of(v)) for a in own) for v, own in pairs if own}
        if len(shifted) > 1:
            raise _Mixes("its operands have their tokens on different axes")
        return shifted.pop() if shifted else self.free(op)

    def reshape(self, op: Op, axes: Sequence[Axes]) -> Axes:
        old, new = shape_of(op.operands[0]), shape_of(op.result)
        if not axes[0]:
            return self.free(op)
        found = _keep(old, new, axes[0]) or _regroup(old, new, axes[0], self.tokens)
        if found is not None:
            return found
        raise _Mixes("it folds the token axis into another")

    def transpose(self, op: Op, axes: Sequence[Axes]) -> Axes:
        perm = op.attrs["perm"]
        assert isinstance(perm, tuple)
        return tuple(perm.index(a) for a in axes[0])

    def along(self, op: Op, axes: Sequence[Axes]) -> Axes:
        """Ops that mix the elements of one or several axes, which must not be token axes."""
        given = op.attrs["axes"] if "axes" in op.attrs else (op.attrs["axis"],)
        rank = len(shape_of(op.operands[0]))
        assert isinstance(given, tuple)
        mixed = {int(a) % rank for a in given}  # type: ignore[arg-type]
        own = {a for a in axes if a}
        if len(own) > 1 or any(mixed & set(a) for a in own):
            raise _Mixes(f"it works along axes {sorted(mixed)}, tokens are on {sorted(own)}")
        if not own:
            return self.free(op)
        kept = own.pop()
        if op.attrs.get("keepdim") is False:
            return tuple(a - sum(m < a for m in mixed) for a in kept)
        return kept

    def rows(self, op: Op, axes: Sequence[Axes]) -> Axes:
        """Ops over the last axis of the first operand; the other operands are weights."""
        last = len(shape_of(op.operands[0])) - 1
        if any(axes[1:]):
            raise _Mixes("its weights depend on tokens")
        if last in axes[0]:
            raise _Mixes("it works along the token axis")
        return axes[0]

    def head_rows(self, op: Op, axes: Sequence[Axes]) -> Axes:
        """Ops over the last axis, with weights of their own along the axis before it."""
        if len(shape_of(op.operands[0])) - 2 in axes[0]:
            raise _Mixes("its heads are tokens")
        return self.rows(op, axes)

    def alike(self, op: Op, axes: Sequence[Axes]) -> Axes:
        """Ops over the last axis of several values, row by row."""
        last = len(shape_of(op.operands[0])) - 1
        if len(set(axes)) > 1 or last in axes[0]:
            raise _Mixes("its operands are not rows of the same tokens")
        return axes[0]

    def experts(self, op: Op, axes: Sequence[Axes]) -> Axes:
        """Rows, indices and weights of the same tokens; the other operands are weights."""
        if any(axes[3:]):
            raise _Mixes("its weights depend on tokens")
        return self.alike(op, axes[:3])

    def heads(self, op: Op, axes: Sequence[Axes]) -> Axes:
        rank = len(shape_of(op.operands[0]))
        if any(a and a != axes[0] for a in axes[1:]) or {rank - 1, rank - 2} & set(axes[0]):
            raise _Mixes("cos and sin are not those of the token")
        return axes[0]

    def lookup(self, op: Op, axes: Sequence[Axes]) -> Axes:
        if axes[0]:
            raise _Mixes("its table depends on tokens")
        return axes[1]

    def rope_table(self, op: Op, axes: Sequence[Axes]) -> Axes:
        return self.lookup(op, (axes[1], axes[0]))

    def matmul(self, op: Op, axes: Sequence[Axes]) -> Axes:
        a, b = (len(shape_of(v)) for v in op.operands)
        if not axes[0] and not axes[1]:
            return self.free(op)
        if axes[0] and not axes[1] and b == 2 and a - 1 not in axes[0]:
            return axes[0]
        raise _Mixes("it is a product of two values that are no weights")

    def broadcast_to(self, op: Op, axes: Sequence[Axes]) -> Axes:
        rank, new = len(shape_of(op.operands[0])), shape_of(op.result)
        found = self.find(new)
        shifted = tuple(a + len(new) - rank for a in axes[0])
        if found is None or (shifted and found != shifted):
            raise _Mixes("it repeats values along a token axis")
        return found

    def attention(self, op: Op, axes: Sequence[Axes]) -> Axes:
        refusal = attention_refusal(op)
        if refusal is not None:
            raise _Mixes(refusal)
        if len(set(axes[:3])) > 1 or axes[0] not in ((0, 1), (1,)):
            raise _Mixes("queries, keys and values are not [batch, sequence, heads, size]")
        if any(axes[3:]):
            raise _Mixes("its sinks depend on tokens")
        return axes[0]

    def recurrent(self, op: Op, axes: Sequence[Axes]) -> Axes:
        count = len(WHOLE[op.name].rows)
        if any(axes[count:]):
            raise _Mixes("its weights depend on tokens")
        if len(set(axes[:count])) > 1 or axes[0] not in ((0, 1), (1,)):
            raise _Mixes("its operands are not [batch, sequence, ..]")
        return axes[0]

    def stateful(self, op: Op, axes: Sequence[Axes]) -> Axes:
        if op.name in SERVED:
            return axes[1]
        return axes[0] if op.name == "serve.paged_attention" else ()


def _regroup(
    old: tuple[Size, ...], new: tuple[Size, ...], axes: Axes, tokens: tuple[Size, ...]
) -> Axes | None:
    """Token axes of `new` when a reshape folds all of them into one, or unfolds that one again."""
    sizes = tokens if len(axes) == 1 else (product(tokens),)
    if axes != tuple(range(axes[0], axes[-1] + 1)):
        return None
    inner = product(old[axes[-1] + 1 :])
    for start in range(len(new) - len(sizes) + 1):
        found = tuple(range(start, start + len(sizes)))
        same = all(known_eq(new[a], size) for a, size in zip(found, sizes, strict=True))
        if same and known_eq(product(new[found[-1] + 1 :]), inner):
            return found
    return None


def _keep(old: tuple[Size, ...], new: tuple[Size, ...], axes: Axes) -> Axes | None:
    """The axes of `new` with the size and stride of the token axes of `old`."""
    found: list[int] = []
    for axis in axes:
        stride = product(old[axis + 1 :])
        for i, size in enumerate(new):
            if known_eq(size, old[axis]) and known_eq(product(new[i + 1 :]), stride):
                found.append(i)
                break
    return tuple(found) if len(found) == len(axes) else None


_Rule = Callable[[_Rules, Op, Sequence[Axes]], Axes]
_RULES: dict[str, _Rule] = {
    "core.reshape": _Rules.reshape,
    "core.transpose": _Rules.transpose,
    "core.softmax": _Rules.along,
    "core.sum": _Rules.along,
    "core.mean": _Rules.along,
    "core.amax": _Rules.along,
    "core.slice": _Rules.along,
    "core.concat": _Rules.along,
    "core.linear": _Rules.rows,
    "nn.head_linear": _Rules.head_rows,
    "nn.rms_norm": _Rules.rows,
    "nn.layer_norm": _Rules.rows,
    "core.topk": _Rules.alike,
    "core.take": _Rules.rows,
    "core.take_along": _Rules.alike,
    "core.put_along": _Rules.alike,
    "nn.experts": _Rules.experts,
    "nn.rope": _Rules.heads,
    "nn.rope_table": _Rules.rope_table,
    "core.embedding": _Rules.lookup,
    "core.gather_rows": _Rules.lookup,
    "core.matmul": _Rules.matmul,
    "core.broadcast_to": _Rules.broadcast_to,
    "nn.attention": _Rules.attention,
    **dict.fromkeys(WHOLE, _Rules.recurrent),
    **dict.fromkeys(SERVED, _Rules.stateful),
    "serve.kv_append": _Rules.stateful,
    "serve.k_append": _Rules.stateful,
    "serve.paged_attention": _Rules.stateful,
}
