"""Targets as data: instruction sets, compiler flags, vector width, GPU architectures."""

from inferc.codegen.targets.cpu import CpuTarget
from inferc.codegen.targets.cuda import ARCHS, CudaArch, CudaTarget
from inferc.codegen.targets.parse import (
    Target,
    joined_name,
    list_targets,
    parse_target,
    parse_targets,
)

__all__ = [
    "ARCHS", "CpuTarget", "CudaArch", "CudaTarget", "Target", "joined_name", "list_targets",
    "parse_target", "parse_targets",
]  # fmt: skip
