"""Runs pipelines: proves the order from facts, watches each pass, keeps a record of it."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from inferc.errors import CompileError
from inferc.ir.core import Module
from inferc.ir.dims import evaluate
from inferc.ir.rewrite import Fuel, OutOfFuel
from inferc.ir.text import structural_hash
from inferc.passes.base import Pass, PassContext
from inferc.passes.facts import FACTS
from inferc.passes.instruments import Instrument
from inferc.passes.record import PassRecord, modelled_bytes, nominal
from inferc.passes.registry import format_pass


class PipelineError(CompileError):
    """A pass needs a fact that nothing before it establishes."""


def prove_order(passes: Sequence[Pass], given: Collection[str] = ()) -> frozenset[str]:
    """Facts that hold after the passes if `given` hold before. Raises PipelineError."""
    facts = frozenset(given)
    for i, pass_ in enumerate(passes):
        unknown = (pass_.requires | pass_.ensures | pass_.breaks) - set(FACTS)
        if unknown:
            raise PipelineError(
                f"Pass {pass_.name} names {', '.join(sorted(unknown))}, which is no fact; "
                f"passes/facts.py has {', '.join(FACTS)}."
            )
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
    module: Module,
    passes: Sequence[Pass],
    *,
    given: Collection[str] = (),
    instruments: Sequence[Instrument] = (),
    fuel: int | None = None,
    first_index: int = 0,
) -> list[PassRecord]:
    """Run passes over the module in place.

    Args:
        module: the module.
        passes: in order.
        given: facts that hold before.
        instruments: told before and after every pass.
        fuel: stop after so many rewrites, in all passes together; what follows is not run.
        first_index: number of the first pass, when a pipeline is run in pieces.

    Returns:
        One record a pass that was run.
    """
    prove_order(passes, given)
    records: list[PassRecord] = []
    runner = _Runner(module)
    for i, pass_ in enumerate(passes, first_index):
        for instrument in instruments:
            instrument.before(module, pass_)
        record, stopped = runner.run(i, pass_, fuel)
        for instrument in instruments:
            instrument.after(module, pass_, record)
        records.append(record)
        fuel = None if fuel is None else fuel - record.rewrites
        if stopped:
            break
    return records


class _Runner:
    """Runs single passes and compares the module before and after."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.state = _State.of(module, structural_hash(module))

    def run(self, index: int, pass_: Pass, fuel: int | None) -> tuple[PassRecord, bool]:
        """Run one pass; also whether it ran out of fuel."""
        context = PassContext(self.module, pass_.name, Fuel(fuel))
        funcs = dict(self.module.funcs)
        stopped, start = False, time.perf_counter()
        try:
            pass_.run(self.module, context)
        except OutOfFuel:
            stopped = True
        ms = (time.perf_counter() - start) * 1e3
        before, self.state = self.state, self.state.next(self.module)
        saved = {
            name: evaluate(size, nominal(self.module.funcs.get(name) or funcs[name]))
            for name, size in context.log.bytes_saved.items()
        }
        record = PassRecord(
            index, format_pass(pass_), round(ms, 3), before.hash != self.state.hash,
            before.ops, self.state.ops, before.bytes, self.state.bytes, context.fuel.used,
            dict(context.log.hits), saved, tuple(context.log.refused), dict(context.log.notes),
        )  # fmt: skip
        return record, stopped


@dataclass(frozen=True)
class _State:
    """What is compared of a module before and after a pass."""

    hash: str
    ops: int
    bytes: dict[str, int]

    @staticmethod
    def of(module: Module, digest: str) -> _State:
        return _State(digest, sum(len(f.ops) for f in module), modelled_bytes(module))

    def next(self, module: Module) -> _State:
        """The state after a pass; counting bytes is skipped if nothing changed."""
        digest = structural_hash(module)
        return self if digest == self.hash else _State.of(module, digest)
