"""Targets as data: instruction sets, compiler flags, vector width."""

from inferc.codegen.targets.cpu import CpuTarget, parse_target

__all__ = ["CpuTarget", "parse_target"]
