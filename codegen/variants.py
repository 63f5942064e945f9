"""The same module for several CPUs: what their step libraries share, checked.

Variants of one artifact differ in instructions only. Weights, KV pages, arena and the list of calls
are planned once; that the code of every target fits them is checked here, never assumed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from inferc.codegen.group import Group
from inferc.codegen.kernel import KernelOptions
from inferc.codegen.library import Generated, generate
from inferc.codegen.registry import choose
from inferc.codegen.select import step_functions
from inferc.codegen.step import StepParams
from inferc.errors import CompileError
from inferc.ir.core import Module


@dataclass(frozen=True)
class Variant:
    """The code for one target, and its folder inside the artifact."""

    folder: str
    generated: Generated


def generate_variants(module: Module, options: list[KernelOptions]) -> tuple[Variant, ...]:
    """Code for each target. Kernels were selected for the first; CompileError if others differ."""
    for other in options[1:]:
        _check_kernels(module, options[0], other)
    variants = tuple(Variant(_folder(o, options), generate(module, o)) for o in options)
    for variant in variants[1:]:
        _check_plans(variants[0].generated, variant.generated)
    return variants


def _folder(one: KernelOptions, options: list[KernelOptions]) -> str:
    """One target keeps the plain folder."""
    target = one.target
    return (
        target.folder if len(options) == 1 else f"{target.folder}/{target.name.partition(':')[2]}"
    )


def _check_kernels(module: Module, first: KernelOptions, other: KernelOptions) -> None:
    for func in step_functions(module):
        for op in func.ops:
            if op.body is None:
                continue
            selected, wanted = str(op.attrs["kernel"]), choose(Group(op, func), other).name
            if wanted != selected:
                raise _differ(first, other, f"kernel '{selected}' becomes '{wanted}'")


def _check_plans(first: Generated, other: Generated) -> None:
    plans: dict[str, tuple[Any, Any]] = {
        "the packed weights": (first.weights.items, other.weights.items),
        "the memory plan": (first.memory, other.memory),
        "the step's calls, sizes or scratch": (_shape(first.step), _shape(other.step)),
    }
    for what, (ours, theirs) in plans.items():
        if ours != theirs:
            raise _differ(first.options, other.options, f"{what} differ")


def _shape(step: StepParams) -> StepParams:
    """A step without the names of its kernels, which are digests of their code."""
    phases = tuple(
        replace(phase, calls=tuple(replace(call, kernel="") for call in phase.calls))
        for phase in step.phases
    )
    return replace(step, kernels=(), phases=phases)


def _differ(first: KernelOptions, other: KernelOptions, how: str) -> CompileError:
    return CompileError(
        f"{first.target.name} and {other.target.name} cannot share an artifact: {how}."
        " Compile one artifact for each."
    )
