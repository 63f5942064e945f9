"""Targets as data: instruction sets, compiler flags, vector width, GPU architectures."""

from inferc.codegen.targets.cpu import CpuTarget
from inferc.codegen.targets.cuda import ARCHS, CudaArch, CudaTarget
from inferc.codegen.targets.parse import Target, list_targets, parse_target

__all__ = [
    "ARCHS", "CpuTarget", "CudaArch", "CudaTarget", "Target", "list_targets", "parse_target",
]  # fmt: skip
