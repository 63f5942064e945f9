"""Flatten batch and sequence to one axis of tokens: `[B, S, ..]` becomes `[T, ..]`.

```
%h = core.embedding(%w, %ids) : f32[B, S, 64]       %h = core.embedding(%w, %ids) : f32[T, 64]
%q = core.reshape(%y) {shape = (B, S, 4, 16)}  ->   %q = core.reshape(%y) {shape = (T, 4, 16)}
%a = nn.attention(%q, %k, %v)                       the same between reshapes to, from [1, T, ..]
```

Legal because the token-parallel analysis has shown that only attention and recurrent ops mix
positions and that nothing mixes sequences. The result is the graph of ONE sequence of T tokens;
page-attention and state-ops then let these read what is kept of their sequence, after which rows of
any sequences may share a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from inferc.ir.card import AttrValue
from inferc.ir.core import Builder, Eliminated, Func, Module, Op, Value
from inferc.ir.dims import Size, Symbol, sym
from inferc.ir.location import derive
from inferc.ir.ops.elementwise import ELEMENTWISE
from inferc.ir.ops.recurrent import WHOLE
from inferc.ir.types import TensorType
from inferc.passes.analysis.token_parallel import (
    Axes,
    TokenParallel,
    analyze_token_parallel,
    shape_of,
)
from inferc.passes.base import Pass, PassContext

T = sym("T")
_ANY_INTEGER = ("core.embedding", "nn.rope_table", "core.cast", "core.reshape", "core.gather_rows")


@dataclass(frozen=True)
class FlattenTokens(Pass):
    """Rewrites @forward to one axis of tokens; ids and positions become `i32[T]`."""

    name = "flatten-tokens"
    requires = frozenset({"raised"})
    ensures = frozenset({"flat"})

    def run(self, module: Module, context: PassContext) -> None:
        """Replace @forward by its flat form."""
        old = module.funcs["forward"]
        if len(shape_of(old.args[0])) == 1:
            return
        context.rewriter(old).spend()
        flat = _Flattener(old, analyze_token_parallel(old), module)
        module.add(flat.run())
        context.hit("flatten", old)


class _Flattener:
    def __init__(self, old: Func, facts: TokenParallel, module: Module) -> None:
        self.old, self.axes, self.module = old, facts.axes, module
        sequence = old.symbols[next(iter(old.args[0].type.shape[1].symbols()))]  # type: ignore[union-attr]
        self.func = Func(old.name, {"T": Symbol("T", max(sequence.low, 1), sequence.high)})
        self.builder = Builder(self.func)
        self.values: dict[Value, Value] = {}
        self.wide: dict[Value, Value] = {}

    def run(self) -> Func:
        for arg in self.old.args:
            self.values[arg] = self.func.add_arg(arg.hint, TensorType((T,), "i32"))
        for op in self.old.ops:
            convert = _CONVERT.get(op.name, _Flattener.copy)
            if op.name in ELEMENTWISE or op.name == "nn.glu":
                convert = _Flattener.elementwise
            made = convert(self, op)
            self.values.update(zip(op.results, made, strict=True))
        return self.builder.returns(*(self.values[r] for r in self.old.results))

    # -- helpers
    def rest(self, value: Value) -> tuple[Size, ...]:
        """Sizes of the axes that are no token axes."""
        own = self.axes[value]
        return tuple(s for i, s in enumerate(shape_of(value)) if i not in own)

    def flat_axis(self, value: Value, axis: int) -> int:
        """Where an axis of `value` is after flattening."""
        own, axis = self.axes[value], axis % len(shape_of(value))
        return axis + bool(own) - sum(a < axis for a in own)

    def operand(self, op: Op, value: Value) -> Value:
        """The flat value; widened to the declared integer type where the op needs that."""
        new, declared = self.values[value], value.type
        assert isinstance(declared, TensorType) and isinstance(new.type, TensorType)
        if op.name in _ANY_INTEGER or new.type.dtype == declared.dtype:
            return new
        if value not in self.wide:
            self.wide[value] = self.builder.op(
                "core.cast", new, loc=derive("flatten-tokens", [op.loc]), hint=value.hint,
                dtype=declared.dtype,
            )  # fmt: skip
        return self.wide[value]

    def view(self, op: Op, value: Value, shape: tuple[Size, ...]) -> Value:
        """`value` with another shape; itself if it has that shape."""
        if shape_of(value) == shape:
            return value
        loc = derive("flatten-tokens", [op.loc])
        return self.builder.op("core.reshape", value, loc=loc, shape=shape)

    def again(self, op: Op, *operands: Value, **attrs: AttrValue) -> tuple[Value, ...]:
        """The same op on flat operands, with some attributes changed."""
        hints = [r.hint for r in op.results]
        made = self.builder.ops(
            op.name, *operands, loc=op.loc, hints=hints, **{**op.attrs, **attrs}
        )
        return made.results

    def void(self, op: Op, value: Value) -> tuple[Value, ...]:
        """An op that flattening turns into nothing."""
        for root in op.loc.roots():
            entry = Eliminated(root.path, "flatten-tokens", f"{op.name} of token axes only")
            if entry not in self.module.eliminated:
                self.module.eliminated.append(entry)
        return (value,)

    # -- ops
    def copy(self, op: Op) -> tuple[Value, ...]:
        if op.name == "param":
            type_ = op.result.type
            made = self.builder.param(str(op.attrs["name"]), type_, loc=op.loc)
            made.hint = op.result.hint
            return (made,)
        return self.again(op, *(self.operand(op, v) for v in op.operands))

    def elementwise(self, op: Op) -> tuple[Value, ...]:
        result = op.result
        rank, own = len(shape_of(result)), self.axes[result]
        return self.again(op, *(self.aligned(op, v, rank, own) for v in op.operands))

    def aligned(self, op: Op, value: Value, rank: int, own: Axes) -> Value:
        """An operand of a broadcasting op whose result had `rank` axes, `own` for tokens."""
        new, shape = self.operand(op, value), shape_of(value)
        shift = rank - len(shape)
        if not own:
            return new
        kept = tuple(s for i, s in enumerate(shape) if i + shift not in own)
        if not self.axes[value]:
            return self.view(op, new, kept)
        padding = (1,) * (rank - len(own) - len(kept))
        return self.view(op, new, (T, *padding, *kept))

    def reshape(self, op: Op) -> tuple[Value, ...]:
        if not self.axes[op.result]:
            return self.copy(op)
        new = self.operand(op, op.operands[0])
        shape = (T, *self.rest(op.result))
        if shape_of(new) == shape:
            return self.void(op, new)
        return self.again(op, new, shape=shape)

    def transpose(self, op: Op) -> tuple[Value, ...]:
        old, own = op.operands[0], self.axes[op.operands[0]]
        if not own:
            return self.copy(op)
        perm = op.attrs["perm"]
        assert isinstance(perm, tuple)
        kept = [self.flat_axis(old, int(p)) for p in perm if p not in own]  # type: ignore[arg-type]
        if kept == sorted(kept):
            return self.void(op, self.operand(op, old))
        return self.again(op, self.operand(op, old), perm=(0, *kept))

    def along(self, op: Op) -> tuple[Value, ...]:
        operands = [self.operand(op, v) for v in op.operands]
        first = next((v for v in op.operands if self.axes[v]), op.operands[0])
        if "axes" in op.attrs:
            axes = op.attrs["axes"]
            assert isinstance(axes, tuple)
            moved = tuple(self.flat_axis(first, int(a)) for a in axes)  # type: ignore[arg-type]
            return self.again(op, *operands, axes=moved)
        axis = op.attrs["axis"]
        assert isinstance(axis, int)
        return self.again(op, *operands, axis=self.flat_axis(first, axis))

    def broadcast_to(self, op: Op) -> tuple[Value, ...]:
        own = self.axes[op.result]
        if not own:
            return self.copy(op)
        new = self.aligned(op, op.operands[0], len(shape_of(op.result)), own)
        return self.again(op, new, shape=(T, *self.rest(op.result)))

    def lookup(self, op: Op) -> tuple[Value, ...]:
        """Ids are i32 wherever they come from, as those of the step are."""
        table, ids = (self.operand(op, v) for v in op.operands)
        if ids.type != TensorType(shape_of(ids), "i32"):
            loc = derive("flatten-tokens", [op.loc])
            ids = self.builder.op("core.cast", ids, loc=loc, hint="ids", dtype="i32")
        return self.again(op, table, ids)

    def attention(self, op: Op) -> tuple[Value, ...]:
        rows = [self.operand(op, v) for v in op.operands]
        batch = [self.view(op, v, (1, *shape_of(v))) for v in rows[:3]]
        made = self.again(op, *batch, *rows[3:])
        return (self.view(op, made[0], (T, *self.rest(op.result))),)

    def recurrent(self, op: Op) -> tuple[Value, ...]:
        count = len(WHOLE[op.name].rows)
        operands = [self.operand(op, v) for v in op.operands]
        rows = [self.view(op, v, (1, *shape_of(v))) for v in operands[:count]]
        made = self.again(op, *rows, *operands[count:])
        return (self.view(op, made[0], (T, *self.rest(op.result))),)


_CONVERT: dict[str, Callable[[_Flattener, Op], tuple[Value, ...]]] = {
    "core.reshape": _Flattener.reshape,
    "core.transpose": _Flattener.transpose,
    "core.softmax": _Flattener.along,
    "core.sum": _Flattener.along,
    "core.mean": _Flattener.along,
    "core.amax": _Flattener.along,
    "core.slice": _Flattener.along,
    "core.concat": _Flattener.along,
    "core.broadcast_to": _Flattener.broadcast_to,
    "core.embedding": _Flattener.lookup,
    "nn.attention": _Flattener.attention,
    **dict.fromkeys(WHOLE, _Flattener.recurrent),
}
