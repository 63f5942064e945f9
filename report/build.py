"""Makes the report from the planned module: a join of what ops, passes and plans already know.

Everything in it is deterministic: formulas and counts, no times and no measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferc.ir.core import Func, Module, Op
from inferc.ir.cost import FREE, Cost, must_move
from inferc.ir.text import print_func, print_module, structural_hash
from inferc.ir.types import CacheType, TensorType
from inferc.report.machines import PLAIN
from inferc.report.model import SCHEMA_VERSION

PHASES = ("prefill", "decode")
STEP = "(step)"  # what no module of the model stands for: inputs, the rotary table


@dataclass(frozen=True)
class KernelInfo:
    """What the code generator made of a group, and what the kernel moves and computes."""

    symbol: str
    definition: str
    source: str
    cost: Cost
    arithmetic: str | None = None
    """Type of the operands of its products, where they are not multiplied as stored."""


@dataclass(frozen=True)
class Facts:
    """Plain tables of the report that the driver fills in."""

    tool_version: str
    model: Mapping[str, Any]
    options: Mapping[str, Any]
    target: Mapping[str, Any]
    kv: Mapping[str, Any]
    states: Sequence[Mapping[str, Any]]
    memory: Mapping[str, Any]
    weights: Sequence[Mapping[str, Any]]


def build(
    module: Module,
    records: Sequence[Mapping[str, Any]],
    facts: Facts,
    kernel_of: Callable[[Op], KernelInfo],
    stages: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The report as plain data.

    Args:
        module: the planned module; its phases are `@prefill` and `@decode`.
        records: pass records as plain data (`PassRecord.to_json`); their times are left out.
        facts: tables about model, target, memory.
        kernel_of: what was generated for a group.
        stages: IR text of earlier stages by name, shown by `inspect --ir`.
    """
    bodies: dict[str, str] = {}
    funcs = [module.funcs[name] for name in PHASES if name in module.funcs]
    phases = {func.name: _phase(func, kernel_of, bodies) for func in funcs}
    texts = {func.name: print_func(func) for func in funcs}
    return {
        "schema_version": SCHEMA_VERSION,
        "tool_version": facts.tool_version,
        "model": dict(facts.model),
        "options": dict(facts.options),
        "target": dict(facts.target),
        "symbols": {s.name: [s.low, s.high] for f in funcs for s in f.symbols.values()},
        "phases": phases,
        "bodies": bodies,
        "passes": [{k: v for k, v in record.items() if k != "ms"} for record in records],
        "kv": dict(facts.kv),
        "states": [dict(s) for s in facts.states],
        "memory": dict(facts.memory),
        "weights": [dict(w) for w in facts.weights],
        "packing": print_module(_packing(module)),
        "eliminated": [vars(e) for e in module.eliminated],
        "stages": {**(stages or {}), **texts},
    }


def _phase(
    func: Func, kernel_of: Callable[[Op], KernelInfo], bodies: dict[str, str]
) -> dict[str, Any]:
    kernels = [_kernel(op, kernel_of, bodies) for op in func.ops if op.name not in FREE]
    return {"kernels": kernels, "must_move_bytes": str(must_move(func).bytes_moved)}


def _kernel(
    op: Op, kernel_of: Callable[[Op], KernelInfo], bodies: dict[str, str]
) -> dict[str, Any]:
    info = kernel_of(op)
    cost = info.cost
    body = ""
    if op.body is not None:
        body = structural_hash(op.body)[:12]
        bodies.setdefault(body, print_func(op.body))
    return {
        "name": info.symbol,
        "kernel": info.definition,
        "source": info.source,
        "arithmetic": info.arithmetic or _arithmetic(op),
        "kind": str(op.attrs.get("kind", "")) or op.short_name,
        "modules": [r.path for r in op.loc.roots() if r.path] or [STEP],
        "flops": str(cost.flops),
        "bytes_read": str(cost.bytes_read),
        "bytes_written": str(cost.bytes_written),
        "body": body,
    }


def _arithmetic(op: Op) -> str:
    """Stored type of the weights that a kernel multiplies with, or of the cache; else f32."""
    for value in op.operands:
        if isinstance(value.type, CacheType):
            return value.type.dtype
        producer = value.producer
        is_weight = producer is not None and producer.name == "param"
        if is_weight and isinstance(value.type, TensorType) and value.type.rank > 1:
            return value.type.dtype
    return PLAIN


def _packing(module: Module) -> Module:
    packing = Module()
    for func in module:
        if func.name.startswith("pack/"):
            packing.add(func)
    return packing
