"""What a pass did, as plain data: for reports, `passes.jsonl` and tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from inferc.ir.core import Func, Module
from inferc.ir.cost import StepBindings, Workload, func_cost
from inferc.ir.dims import evaluate
from inferc.passes.base import Refused

DECODE = Workload.decode(sequences=1, context_tokens=1024)
PREFILL = Workload.prefill(tokens=512)


@dataclass(frozen=True)
class PassRecord:
    """One run of a pass.

    Attributes:
        index: place in the pipeline.
        name: pass with options, as `--pass` takes it.
        ms: time of the pass itself.
        changed: whether the structure of the module changed (names and locations do not count).
        ops_before: ops of all functions.
        ops_after: the same after the pass.
        bytes_before: modelled bytes a step by function, at `DECODE` or `PREFILL`.
        bytes_after: the same after the pass.
        rewrites: rewrites counted as fuel.
        hits: applications by pattern.
        bytes_saved: what the pass claims to save, by function, at `DECODE` or `PREFILL`.
        refused: places where a pattern was not applied, with reasons.
        notes: what was chosen and why, with how often.
    """

    index: int
    name: str
    ms: float
    changed: bool
    ops_before: int
    ops_after: int
    bytes_before: Mapping[str, int] = field(default_factory=dict)
    bytes_after: Mapping[str, int] = field(default_factory=dict)
    rewrites: int = 0
    hits: Mapping[str, int] = field(default_factory=dict)
    bytes_saved: Mapping[str, int] = field(default_factory=dict)
    refused: tuple[Refused, ...] = ()
    notes: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain data, in the order of the fields."""
        return asdict(self)


def nominal(func: Func) -> Mapping[str, int]:
    """Values of a function's symbols at which passes are compared."""
    step = (DECODE if func.name == "decode" else PREFILL).bindings()
    others = {s.name: min(s.high, 512) for s in func.symbols.values() if s.name not in step}
    return StepBindings({**others, **step})


def modelled_bytes(module: Module) -> dict[str, int]:
    """Bytes a step of each function, except those that pack weights."""
    return {
        func.name: evaluate(func_cost(func).bytes_moved, nominal(func))
        for func in module
        if not func.name.startswith("pack/")
    }
