"""Facts that passes require and ensure: name, sentence, and a checker for tests and debugging."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from inferc.errors import CompileError
from inferc.ir.core import Func, Module, Op
from inferc.ir.dims import sym
from inferc.ir.ops.recurrent import WHOLE
from inferc.ir.types import CacheType, StateType, TensorType
from inferc.ir.weights import has_tokens, weight_ops
from inferc.passes.rebuild import step_funcs
from inferc.passes.step_arguments import STEP_ARGUMENTS


class FactBroken(CompileError):
    """A pass ensures a fact that does not hold after it; a bug of the pass."""


@dataclass(frozen=True)
class Fact:
    """A property of a module. `check` yields what contradicts it."""

    name: str
    summary: str
    check: Callable[[Module], Iterator[str]]


FACTS: dict[str, Fact] = {}


def _fact(name: str) -> Callable[[Callable[[Module], Iterator[str]]], Fact]:
    def declare(check: Callable[[Module], Iterator[str]]) -> Fact:
        FACTS[name] = Fact(name, str(check.__doc__), check)
        return FACTS[name]

    return declare


def check_facts(module: Module, names: Collection[str], claimed_by: str) -> None:
    """Raise FactBroken for the first fact that does not hold."""
    for name in sorted(names):
        problem = next(FACTS[name].check(module), None)
        if problem is not None:
            raise FactBroken(
                f"Pass {claimed_by} ensures the fact {name!r} ({FACTS[name].summary}) "
                f"but the module breaks it: {problem}."
            )


def _groups(module: Module) -> Iterator[tuple[Func, Op]]:
    return ((f, op) for f in step_funcs(module) for op in f.ops if op.body is not None)


def _op(func: Func, op: Op) -> str:
    roots = op.loc.roots()
    return f"{op.name} of {roots[0].path if roots else 'unknown'} in @{func.name}"


@_fact("normalized")
def _normalized(module: Module) -> Iterator[str]:
    """No op without effect: every result is read or returned."""
    for func in module:
        for op in func.ops:
            if not op.card.stateful and not any(r.uses or func.is_result(r) for r in op.results):
                yield f"nobody reads {_op(func, op)}"


@_fact("raised")
def _raised(module: Module) -> Iterator[str]:
    """Attention masks are attributes of attention, not values."""
    for func in step_funcs(module):
        for op in func.ops:
            if op.name == "nn.mask":
                yield f"found {_op(func, op)}"


@_fact("flat")
def _flat(module: Module) -> Iterator[str]:
    """Step functions have one axis of tokens: ids and positions are i32[T]."""
    for func in step_funcs(module):
        for arg in func.args[:2]:
            if not isinstance(arg.type, TensorType) or arg.type.rank != 1:
                yield f"%{arg.hint} of @{func.name} is {arg.type}"


@_fact("paged")
def _paged(module: Module) -> Iterator[str]:
    """Attention reads caches, which are arguments and results of the step functions."""
    for func in step_funcs(module):
        yield from (f"found {_op(func, op)}" for op in func.ops if op.name == "nn.attention")
        caches = [a for a in func.args if isinstance(a.type, CacheType)]
        returned = [r for r in func.results if isinstance(r.type, CacheType)]
        if len(caches) != len(returned):
            yield f"@{func.name} takes {len(caches)} caches and returns {len(returned)}"


@_fact("states")
def _states(module: Module) -> Iterator[str]:
    """Recurrent ops continue from states, which are arguments and results of the step functions."""
    for func in step_funcs(module):
        yield from (f"found {_op(func, op)}" for op in func.ops if op.name in WHOLE)
        states = [a for a in func.args if isinstance(a.type, StateType)]
        returned = [r for r in func.results if isinstance(r.type, StateType)]
        if len(states) != len(returned):
            yield f"@{func.name} takes {len(states)} states and returns {len(returned)}"


@_fact("phases")
def _phases(module: Module) -> Iterator[str]:
    """The step functions are @prefill and @decode, with the arguments of the step ABI."""
    found = [f.name for f in step_funcs(module)]
    if sorted(found) != ["decode", "prefill"]:
        yield f"found the step functions {', '.join(found) or 'none'}"
    for func in step_funcs(module):
        hints = [a.hint for a in func.args if isinstance(a.type, TensorType)]
        expected = [name for name in STEP_ARGUMENTS if name in hints]
        if hints != expected:
            yield f"@{func.name} takes {', '.join(hints)}; expected {', '.join(expected)}"


@_fact("logits-last")
def _logits_last(module: Module) -> Iterator[str]:
    """Logits are computed for the rows of %logit_indices only."""
    for func in step_funcs(module):
        logits = func.results[0].type
        if not isinstance(logits, TensorType) or logits.shape[0] != sym("L"):
            yield f"@{func.name} returns {logits}"


@_fact("hoisted")
def _hoisted(module: Module) -> Iterator[str]:
    """Step functions compute no weights: expressions over parameters are in pack functions."""
    for func in step_funcs(module):
        for op in weight_ops(func):
            if op.name != "param" and not has_tokens(op):
                yield f"found {_op(func, op)}"


@_fact("fused")
def _fused(module: Module) -> Iterator[str]:
    """Step functions consist of groups, parameters and reshapes."""
    for func in step_funcs(module):
        for op in func.ops:
            if op.name not in ("fuse.group", "param", "core.reshape"):
                yield f"found {_op(func, op)}"


@_fact("kv-planned")
def _kv_planned(module: Module) -> Iterator[str]:
    """Every cache has a page size."""
    for func in step_funcs(module):
        for arg in func.args:
            if isinstance(arg.type, CacheType) and arg.type.page_tokens is None:
                yield f"%{arg.hint} of @{func.name} is {arg.type}"


@_fact("selected")
def _selected(module: Module) -> Iterator[str]:
    """Every group names its kernel."""
    yield from (
        f"no kernel for {_op(f, op)}" for f, op in _groups(module) if not op.attrs["kernel"]
    )


@_fact("packed")
def _packed(module: Module) -> Iterator[str]:
    """Every pack function yields a weight that a step function reads."""
    read = {name for func in step_funcs(module) for name in func.params()}
    for name in module.funcs:
        if name.startswith("pack/") and name.removeprefix("pack/") not in read:
            yield f"nobody reads what @{name} yields"


@_fact("memory-planned")
def _memory_planned(module: Module) -> Iterator[str]:
    """Every group has arena offsets for its results."""
    for func, op in _groups(module):
        if len(op.attrs["offsets"] or ()) != len(op.results):  # type: ignore[arg-type]
            yield f"no offsets for {_op(func, op)}"
