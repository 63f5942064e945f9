"""Move computations on weights alone out of the step.

```
%q = param @a.q : f32[64, 64]                     %w = param @a.q-k : f32[96, 64]
%k = param @a.k : f32[32, 64]               ->    %y = core.linear(%x, %w)
%w = core.concat(%q, %k) {axis = 0}
%y = core.linear(%x, %w)                          func @pack/a.q-k() -> (f32[96, 64]) { .. }
```

What depends on parameters only is computed once, when weights are packed. A cast to f32 in front of
an op that reads any stored type is dropped instead: it would only make the weight larger. A table
of different constants that element-wise ops read becomes a weight too, for kernels have single
numbers compiled in only; other constants alone are left to constant folding.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from inferc.ir.core import Func, Module, Op
from inferc.ir.ops.elementwise import ELEMENTWISE
from inferc.ir.rewrite import Rewriter, outline
from inferc.ir.text import structural_text
from inferc.ir.types import TensorType
from inferc.ir.weights import has_tokens
from inferc.passes.base import Pass, PassContext
from inferc.passes.rebuild import step_funcs

# Operands that may be of any stored type, so that a widening cast in front of them is void.
_ANY_TYPE = {
    "core.linear": (1, 2),
    "nn.head_linear": (1,),
    "core.embedding": (0,),
    "nn.rms_norm": (1,),
    "nn.layer_norm": (1, 2),
}


@dataclass(frozen=True)
class HoistWeights(Pass):
    """Weight expressions become functions @pack/<name>; the step reads `param @<name>`."""

    name = "hoist-weights"
    ensures = frozenset({"hoisted"})

    def run(self, module: Module, context: PassContext) -> None:
        """Rewrite the step functions."""
        names = _Names({f.name: _key(f) for f in module if f.name.startswith("pack/")})
        for func in step_funcs(module):
            rewriter = context.rewriter(func)
            _drop_casts(func, rewriter, context)
            weights, params = _weight_ops(func), func.params()
            for op in [op for op in func.ops if op in weights and op.name != "param"]:
                readers = [u for r in op.results for u in r.users if u not in weights]
                if readers or any(func.is_result(r) for r in op.results):
                    _hoist(module, op, weights, names, params, rewriter)
                    context.hit("hoist", func)
            _erase_dead(func, rewriter, weights)


@dataclass
class _Names:
    """Names of pack functions already given, with the key of what they compute."""

    taken: dict[str, str] = field(default_factory=dict)

    def of(self, name: str, key: str) -> str:
        """`name`, with a number if it is taken by another computation."""
        chosen, number = name, 1
        while self.taken.setdefault(f"pack/{chosen}", key) != key:
            number += 1
            chosen = f"{name}-{number}"
        return chosen


def _drop_casts(func: Func, rewriter: Rewriter, context: PassContext) -> None:
    for op in list(func.ops):
        for index in _ANY_TYPE.get(op.name, ()):
            if index >= len(op.operands):
                continue
            cast = op.operands[index].producer
            if cast is None or cast.name != "core.cast" or cast.attrs["dtype"] != "f32":
                continue
            source = cast.operands[0]
            plain = isinstance(source.type, TensorType) and source.type.is_float
            if plain and source.producer is not None and source.producer.name == "param":
                rewriter.spend()
                use = next(u for u in cast.result.uses if u.op is op and u.index == index)
                rewriter.set_operand(use, source)
                context.hit("drop-cast", func)
                if not cast.result.uses and not func.is_result(cast.result):
                    rewriter.erase(cast)


def _weight_ops(func: Func) -> set[Op]:
    """Params, and ops that depend on at least one param and else on constants only."""
    weights: set[Op] = set()
    constants: set[Op] = set()
    for op in func.ops:
        producers = [v.producer for v in op.operands]
        if op.name == "param" or _is_table(op):
            weights.add(op)
        elif op.card.stateful or op.body is not None or has_tokens(op):
            continue
        elif all(p in weights or p in constants for p in producers):
            (weights if any(p in weights for p in producers) else constants).add(op)
    return weights


def _is_table(op: Op) -> bool:
    """Whether an op is a constant of several numbers, or one with views, for element-wise ops."""
    if op.name != "core.constant" or op.attrs["dtype"] != "f32":
        return False
    values = op.attrs["values"]
    assert isinstance(values, tuple)
    readers, stack, viewed = list[Op](), list(op.result.users), False
    while stack:
        reader = stack.pop()
        if reader.name == "core.reshape":
            viewed = True
            stack += reader.result.users
        else:
            readers.append(reader)
    several = len(set(values)) > 1 or (viewed and len(values) > 1)
    return several and all(r.name in ELEMENTWISE for r in readers)


def _hoist(
    module: Module, op: Op, weights: set[Op], names: _Names, params: dict[str, Op],
    rewriter: Rewriter,
) -> None:  # fmt: skip
    """Read the expression from a parameter of its own; `params` are the function's by name."""
    rewriter.spend()
    expression = _cone(op)
    operands, pack = outline(expression, list(op.results), {})
    assert not operands and len(op.results) == 1
    name = names.of(_name(expression), _key(pack))
    pack.name = f"pack/{name}"
    module.add(pack)
    made = params.get(name)  # blocks that share weights compute them alike
    if made is None:
        made = params[name] = rewriter.insert_param(name, op.result.type, before=op, of=expression)
        made.result.hint = op.result.hint
    for use in op.result.uses:
        if use.op not in weights:
            rewriter.set_operand(use, made.result)
    results = [made.result if r is op.result else r for r in rewriter.func.results]
    rewriter.set_results(*results)


def _cone(op: Op) -> list[Op]:
    """Everything that `op` is computed from, in order."""
    found: dict[Op, None] = {}

    def visit(item: Op) -> None:
        for value in item.operands:
            if value.producer is not None and value.producer not in found:
                visit(value.producer)
        found[item] = None

    visit(op)
    return list(found)


def _key(pack: Func) -> str:
    """What a pack function computes, from which parameters."""
    return structural_text(pack) + " ".join(pack.params())


def _name(expression: list[Op]) -> str:
    """A readable name out of the source parameters and the ops."""
    sources = [str(op.attrs["name"]) for op in expression if op.name == "param"]
    ops = [_word(op) for op in expression if op.name not in ("param", "core.constant")]
    if not sources:
        constant = next(op for op in expression if op.name == "core.constant")
        return f"{constant.loc.roots()[0].path}.{constant.result.hint}"
    if len(sources) == 1:
        return ".".join([sources[0], "-".join(ops)])
    parts = [name.split(".") for name in sources]
    low = _common(parts)
    high = _common([p[low:][::-1] for p in parts])
    middle = _listed([".".join(p[low : len(p) - high]) for p in parts])
    joined = [*parts[0][:low], middle, *(parts[0][len(parts[0]) - high :] if high else [])]
    return ".".join(j for j in joined if j)


def _listed(words: list[str]) -> str:
    """All of them, but of counted ones (the experts of a layer) the first and the last."""
    counted = [str(i) for i in range(len(words))]
    return f"0-to-{words[-1]}" if len(words) > 4 and words == counted else "-".join(words)


def _word(op: Op) -> str:
    if op.name == "core.slice":
        return f"rows-{op.attrs['start']}-{op.attrs['stop']}"
    return op.short_name


def _common(parts: list[list[str]]) -> int:
    """Length of the common beginning, shorter than the shortest part."""
    shortest = min(len(p) for p in parts) - 1
    for i in range(shortest):
        if len({p[i] for p in parts}) > 1:
            return i
    return max(shortest, 0)


def _erase_dead(func: Func, rewriter: Rewriter, weights: set[Op]) -> None:
    for op in reversed(list(func.ops)):
        unread = not any(r.uses or func.is_result(r) for r in op.results)
        if unread and (op in weights or op.name == "core.constant"):
            rewriter.erase(op)
