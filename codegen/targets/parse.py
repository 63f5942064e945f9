"""From a spec such as `cpu:native` or `cuda:sm_90a` to a target."""

from __future__ import annotations

from inferc.codegen.targets.cpu import KNOWN, CpuTarget, list_cpu_targets, parse_cpu_target
from inferc.codegen.targets.cuda import ARCHS, CudaTarget, parse_cuda_target
from inferc.errors import CompileError

Target = CpuTarget | CudaTarget


def list_targets() -> list[tuple[str, str]]:
    """Names and one line each; `cpu:native` says what it stands for here."""
    return [*list_cpu_targets(), *((f"cuda:{arch.name}", arch.summary) for arch in ARCHS.values())]


def parse_target(spec: str) -> Target:
    """The target of a spec. Raises CompileError listing the known ones."""
    kind, _, rest = spec.partition(":")
    if kind == "cuda" and rest:
        return parse_cuda_target(spec)
    if kind == "cpu" and rest:
        return parse_cpu_target(spec)
    known = ", ".join([*KNOWN, *(f"cuda:{name}" for name in ARCHS)])
    raise CompileError(f"Unknown target '{spec}'. Known targets: {known}.")
