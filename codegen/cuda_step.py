"""What the step template of CUDA needs beside what the CPU's does: kernels by number, scratch."""

from __future__ import annotations

from dataclasses import dataclass

from inferc.codegen.render import environment
from inferc.codegen.step import Phase, StepParams
from inferc.codegen.units import Units


@dataclass(frozen=True)
class CudaKernel:
    """A `__global__` function, and the unit in whose cubin it is."""

    name: str
    unit: str


SAMPLING_UNIT = "sampling"
"""The one kernel file that is the same for every model: `sampling.cu.j2`."""
SAMPLING_KERNELS = tuple(
    CudaKernel(f"{SAMPLING_UNIT}_{name}", SAMPLING_UNIT)
    for name in ("edit", "scan", "settle", "weigh", "limit", "mass", "draw")
)


@dataclass(frozen=True)
class CudaStepParams:
    """Variables of `cuda_step.cpp.j2`. Kernels are launched by their place in `kernels`."""

    launches: tuple[str, ...]
    kernels: tuple[CudaKernel, ...]
    step_tokens: int
    sequences: int
    table_pages: int
    weights: int
    caches: int
    states: int
    scratch_bytes: int
    phases: tuple[Phase, ...]


def cuda_step(step: StepParams, units: Units) -> CudaStepParams:
    """The same step as launches."""
    return CudaStepParams(
        tuple(sorted(units.by_name)), (*cuda_kernels(units), *SAMPLING_KERNELS), step.step_tokens,
        step.sequences, step.table_pages, step.weights, step.caches, step.states,
        cuda_scratch_bytes(units), step.phases,
    )  # fmt: skip


def sampling_code() -> str:
    """The kernel file of `SAMPLING_UNIT`."""
    return environment().get_template(f"{SAMPLING_UNIT}.cu.j2").render()


def cuda_kernels(units: Units) -> tuple[CudaKernel, ...]:
    """All kernels, those of a unit together."""
    return tuple(
        CudaKernel(f"{name}{suffix}", name)
        for name, unit in sorted(units.by_name.items())
        for suffix in unit.definition.kernels
    )


def cuda_scratch_bytes(units: Units) -> int:
    """Device memory that the launches of a step share: as much as the largest wants."""
    return max((int(scratch.shared) for scratch in units.scratches()), default=0)
