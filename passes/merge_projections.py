"""Merge linears of the same input, and keep gated pairs apart.

```
%q = core.linear(%h, %wq)             %w = core.concat(%wq, %wk, %wv) {axis = 0}
%k = core.linear(%h, %wk)       ->    %y = core.linear(%h, %w)
%v = core.linear(%h, %wv)             %q = core.slice(%y) {axis = 1, start = 0, ..}  and so on
```

Pays because `%h` is read once instead of three times, and one kernel starts instead of three. Does
not fire where a reader would need a copy of its slice (an element-wise epilogue, a norm over the
whole projection, attention without rope), for weights of different stored types, or for gate and up
of a gated pair, which fuse-activation takes together. The reverse, for a pair stored as one weight:

```
%y = core.linear(%h, %w)                      %g = core.linear(%h, rows 0..I of %w)
%a = nn.glu(first half of %y, second)   ->    %u = core.linear(%h, rows I..2I of %w)
                                              %a = nn.glu(%g, %u)
```
"""

from __future__ import annotations

from dataclasses import dataclass

from inferc.ir.card import AttrValue
from inferc.ir.core import Func, Module, Op, Value
from inferc.ir.dims import Size, known_le
from inferc.ir.rewrite import Rewriter
from inferc.ir.types import TensorType
from inferc.passes.analysis.token_parallel import shape_of
from inferc.passes.base import Pass, PassContext
from inferc.passes.fusion import sole_reader, value_bytes
from inferc.passes.rebuild import step_funcs

MERGE, SPLIT = "merge-projections", "split-gated-pair"


@dataclass(frozen=True)
class MergeProjections(Pass):
    """One linear for q, k, v; two for a gated pair."""

    name = "merge-projections"
    requires = frozenset({"flat"})
    breaks = frozenset({"hoisted"})

    def run(self, module: Module, context: PassContext) -> None:
        """Rewrite the step functions."""
        for func in step_funcs(module):
            rewriter = context.rewriter(func)
            for op in list(func.ops):
                if op.name == "core.linear":
                    _split_pair(func, op, rewriter, context)
            by_input: dict[Value, list[Op]] = {}
            for op in func.ops:
                if op.name == "core.linear":
                    by_input.setdefault(op.operands[0], []).append(op)
            position = {op: i for i, op in enumerate(func.ops)}
            for linears in by_input.values():
                if len(linears) > 1:
                    _Merge(func, rewriter, context, position).merge(linears)


# -- q, k, v
@dataclass
class _Merge:
    func: Func
    rewriter: Rewriter
    context: PassContext
    position: dict[Op, int]

    def merge(self, linears: list[Op]) -> None:
        classes: dict[tuple[str, int], list[Op]] = {}
        for op in linears:
            if self.in_pair(op):
                continue
            reason = self.refusal(op, linears[0])
            if reason is not None:
                self.context.refuse(MERGE, op, reason)
                continue
            classes.setdefault((_dtype(op.operands[1]), len(op.operands)), []).append(op)
        for (dtype, _), ops in classes.items():
            if len(ops) > 1:
                self.join(ops)
            elif len(classes) > 1:
                others = sorted({d for d, _ in classes})
                why = f"its weight is {dtype}; the linears of this input have {', '.join(others)}"
                self.context.refuse(MERGE, ops[0], why + " or another bias")

    def in_pair(self, op: Op) -> bool:
        reader = sole_reader(op.result, self.func)
        return reader is not None and reader.name == "nn.glu"

    def refusal(self, op: Op, first: Op) -> str | None:
        for weight in op.operands[1:]:
            if weight.producer is None or self.position[weight.producer] > self.position[first]:
                return "its weight is defined after the first linear of this input"
        for reader in op.result.users:
            if reader.name != "core.reshape":
                return f"{reader.name} reads all of it and would need a copy of the slice"
        if self.func.is_result(op.result):
            return "the function returns it"
        copied = _copied_bytes(op.result)
        if known_le(copied, value_bytes(op.operands[0]), self.func.symbols) is not True:
            return f"attention reads it as it is: a copy of {copied} bytes a step costs more"
        return None

    def join(self, ops: list[Op]) -> None:
        self.rewriter.spend()
        x, first = ops[0].operands[0], ops[0]
        weights = [self.concat(ops, i) for i in range(1, len(first.operands))]
        y = self.rewriter.insert(
            "core.linear", x, *weights, before=first, of=ops, hint="qkv"
        ).result
        axis, start = len(shape_of(y)) - 1, 0
        for op in ops:
            width = shape_of(op.result)[-1]
            assert isinstance(width, int)
            part = self.rewriter.insert(
                "core.slice", y, before=first, of=[op], hint=op.result.hint, axis=axis,
                start=start, stop=start + width,
            )  # fmt: skip
            self.rewriter.replace_value(op.result, part.result)
            start += width
        for op in ops:
            self.rewriter.erase(op)
        self.context.hit(MERGE, self.func, value_bytes(x) * (len(ops) - 1))

    def concat(self, ops: list[Op], index: int) -> Value:
        parts = [op.operands[index] for op in ops]
        return self.rewriter.insert(
            "core.concat", *parts, before=ops[0], of=ops, hint=parts[0].hint, axis=0
        ).result


def _dtype(value: Value) -> str:
    assert isinstance(value.type, TensorType)
    return value.type.dtype


def _copied_bytes(value: Value) -> Size:
    """Bytes to copy a slice that attention would read as it is, were it not a slice."""
    for reader in value.users:
        if reader.name in ("serve.paged_attention", "nn.attention"):
            return value_bytes(value) * 2
        if reader.name == "core.reshape":
            copied = _copied_bytes(reader.result)
            if copied != 0:
                return copied
    return 0


# -- gated pairs
def _split_pair(func: Func, op: Op, rewriter: Rewriter, context: PassContext) -> None:
    """Two linears in place of one whose halves are gate and up."""
    slices = op.result.users
    glu = sole_reader(slices[0].results[0], func) if slices else None
    if glu is None or glu.name != "nn.glu" or func.is_result(op.result):
        return
    halves = [v.producer for v in glu.operands]
    last = len(shape_of(op.result)) - 1
    for part in slices:
        if part not in halves or part.name != "core.slice" or part.attrs["axis"] not in (last, -1):
            return
        if sole_reader(part.result, func) is not glu or part.attrs["step"] != 1:
            return
    if len(slices) != 2:
        return
    rewriter.spend()
    for part in slices:
        span: dict[str, AttrValue] = {"start": part.attrs["start"], "stop": part.attrs["stop"]}
        weights = [
            rewriter.insert("core.slice", w, before=op, of=[op], hint=w.hint, axis=0, **span).result
            for w in op.operands[1:]
        ]
        x = op.operands[0]
        y = rewriter.insert("core.linear", x, *weights, before=op, of=[op, part])
        y.result.hint = part.result.hint
        rewriter.replace_value(part.result, y.result)
        rewriter.erase(part)
    rewriter.erase(op)
    context.hit(SPLIT, func)
