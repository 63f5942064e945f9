"""Runs pipelines: proves the order from facts, watches what each pass does, keeps a record of it."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from inferc.errors import CompileError
from inferc.ir.core import Module
from inferc.ir.rewrite import OutOfFuel
from inferc.ir.text import structural_hash
from inferc.passes.base import Pass, PassContext, Refused


class PipelineError(CompileError):
    """A pass needs a fact that nothing before it establishes."""


@dataclass(frozen=True)
class PassRecord:
    """What one run of a pass did, as plain data."""

    index: int
    name: str
    ms: float
    changed: bool
    ops_before: int
    ops_after: int
    hits: dict[str, int] = field(default_factory=dict)
    refused: tuple[Refused, ...] = ()


def prove_order(passes: Sequence[Pass], given: Collection[str] = ()) -> frozenset[str]:
    """Facts that hold after the passes if `given` hold before. Raises PipelineError."""
    facts = frozenset(given)
    for i, pass_ in enumerate(passes):
        missing = pass_.requires - facts
        if missing:
            before = ", ".join(p.name for p in passes[:i]) or "nothing"
            raise PipelineError(
                f"Pass {pass_.name} requires {', '.join(sorted(missing))}, which does not hold "
                f"after {before} (holds: {', '.join(sorted(facts)) or 'nothing'})."
            )
        facts = (facts - pass_.breaks) | pass_.ensures
    return facts


def run_passes(
    module: Module, passes: Sequence[Pass], *, given: Collection[str] = (), fuel: int | None = None
) -> list[PassRecord]:
    """Run passes over the module in place."""
    prove_order(passes, given)
    return [_run_one(i, module, p, fuel) for i, p in enumerate(passes)]


def _run_one(index: int, module: Module, pass_: Pass, fuel: int | None) -> PassRecord:
    context = PassContext(module, pass_.name, fuel)
    before, ops_before = structural_hash(module), _count(module)
    start = time.perf_counter()
    try:
        pass_.run(module, context)
    except OutOfFuel:
        pass
    ms = (time.perf_counter() - start) * 1e3
    return PassRecord(
        index,
        pass_.name,
        ms,
        structural_hash(module) != before,
        ops_before,
        _count(module),
        dict(context.log.hits),
        tuple(context.log.refused),
    )


def _count(module: Module) -> int:
    return sum(len(f.ops) for f in module)
