"""What must hold of every compiled CUDA kernel, whether or not there is a GPU.

No local memory (a spilled register, or an array that is indexed at run time, costs a trip to device
memory), no warning of ptxas, shared memory that a block can have, and the instructions that the
kernel's definition declares.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from inferc.codegen.cache import Cache
from inferc.codegen.cuda_build import Cubin
from inferc.codegen.cuda_occupancy import MULTIPROCESSORS
from inferc.codegen.cuda_static import (
    KernelResources,
    cached_instructions,
    compiler_warnings,
    count_instruction,
    declared_instructions,
    read_resources,
)


@dataclass(frozen=True)
class KernelFacts:
    """What the cubin of an architecture says of one kernel; instructions with how often."""

    arch: str
    resources: KernelResources
    instructions: Mapping[str, int]


@dataclass(frozen=True)
class Expected:
    """What a unit's definition promises.

    Attributes:
        unit: its name.
        kernels: names of its `__global__` functions.
        instructions: `KernelDef.instructions`; each must be in one of the kernels.
    """

    unit: str
    kernels: tuple[str, ...]
    instructions: Mapping[str, tuple[str, ...]]


def kernel_facts(cubin: Cubin, arch: str, nvdisasm: str, cache: Cache) -> dict[str, KernelFacts]:
    """Facts of all kernels of a cubin by name. Raises ToolchainError: it cannot be read."""
    instructions = cached_instructions(cubin.path, nvdisasm, cache)
    return {
        kernel.name: KernelFacts(arch, kernel, instructions[kernel.name])
        for kernel in read_resources(cubin.path)
    }


def faults(
    expected: Iterable[Expected], arch: str, facts: Mapping[str, KernelFacts], messages: str
) -> list[str]:
    """Everything wrong with units on an architecture, a line each.

    Args:
        expected: the units.
        arch: such as `sm_90a`.
        facts: of the kernels of their cubins, by name.
        messages: ptxas's, of the same cubins.
    """
    found = [f"{arch}: {line}" for line in compiler_warnings(messages)]
    for unit in expected:
        for name in unit.kernels:
            found += _kernel_faults(name, arch, facts.get(name))
        for wanted in declared_instructions(unit.instructions, arch):
            there = [facts[name].instructions for name in unit.kernels if name in facts]
            if not any(count_instruction(instructions, wanted) for instructions in there):
                found.append(f"{unit.unit} on {arch}: no {wanted}, which its definition declares")
    return found


def _kernel_faults(name: str, arch: str, facts: KernelFacts | None) -> list[str]:
    if facts is None:
        return [f"{name} on {arch}: declared by its definition, but not in the cubin"]
    resources, found = facts.resources, []
    if resources.local_bytes:
        found.append(
            f"{name} on {arch}: {resources.local_bytes} bytes of local memory a thread"
            f" ({resources.registers} registers)"
        )
    most = MULTIPROCESSORS[arch].block_shared_bytes
    if resources.shared_bytes > most:
        found.append(
            f"{name} on {arch}: {resources.shared_bytes} bytes of static shared memory a block,"
            f" of at most {most}"
        )
    if resources.threads is None:
        found.append(f"{name} on {arch}: no launch bound, so ptxas guesses the registers it has")
    return found
