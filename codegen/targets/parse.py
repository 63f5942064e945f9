"""From a spec such as `cpu:native` or `cuda:sm_90a` to targets."""

from __future__ import annotations

from collections.abc import Sequence

from inferc.codegen.targets.cpu import KNOWN, CpuTarget, list_cpu_targets, parse_cpu_targets
from inferc.codegen.targets.cuda import ARCHS, CudaTarget, parse_cuda_target
from inferc.errors import CompileError

Target = CpuTarget | CudaTarget


def list_targets() -> list[tuple[str, str]]:
    """Names and one line each; `cpu:native` says what it stands for here."""
    return [*list_cpu_targets(), *((f"cuda:{arch.name}", arch.summary) for arch in ARCHS.values())]


def parse_targets(spec: str) -> tuple[Target, ...]:
    """The targets of a spec: several CPUs, the most capable first, or one of CUDA.

    Raises CompileError listing the known ones.
    """
    kind, _, rest = spec.partition(":")
    if kind == "cuda" and rest:
        return (parse_cuda_target(spec),)
    if kind == "cpu" and rest:
        return parse_cpu_targets(spec)
    known = ", ".join([*KNOWN, *(f"cuda:{name}" for name in ARCHS)])
    raise CompileError(f"Unknown target '{spec}'. Known targets: {known}.")


def parse_target(spec: str) -> Target:
    """The one target of a spec. Raises CompileError, also for a spec of several."""
    targets = parse_targets(spec)
    if len(targets) > 1:
        raise CompileError(
            f"Target '{spec}' stands for {len(targets)} targets, and one is wanted here."
        )
    return targets[0]


def joined_name(targets: Sequence[Target]) -> str:
    """The spec of targets of one kind, as `parse_targets` reads it."""
    names = [target.name.partition(":")[2] for target in targets]
    return f"{targets[0].kind}:" + ",".join(names)
