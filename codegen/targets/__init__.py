"""Targets as data: instruction sets, compiler flags, vector width."""

from inferc.codegen.targets.cpu import CpuTarget, list_targets, parse_target

__all__ = ["CpuTarget", "list_targets", "parse_target"]
