"""CPU targets. A target is data; `cpu:native` resolves to the named target this machine has."""

from __future__ import annotations

from dataclasses import dataclass, replace

from inferc.errors import CompileError
from inferc.runtime.host import host_isa, host_machine


@dataclass(frozen=True)
class CpuTarget:
    """One CPU to compile for.

    Attributes:
        name: compatibility string, such as `cpu:x86-64-v4+vnni`.
        machine: machine in the manifest's spelling, such as `x86_64`.
        isa: instruction sets that must be present, canonical names.
        flags: options of gcc and clang that select them.
        llvm_cpu: name of the CPU for LLVM (also zig's, with underscores).
        llvm_features: LLVM features beyond those of `llvm_cpu`.
        vector_lanes: float32 lanes of one register.
    """

    name: str
    machine: str
    isa: tuple[str, ...]
    flags: tuple[str, ...]
    llvm_cpu: str
    llvm_features: tuple[str, ...]
    vector_lanes: int
    kind: str = "cpu"

    @property
    def folder(self) -> str:
        """Folder of the target inside an artifact."""
        return "cpu"

    def has(self, feature: str) -> bool:
        """Whether an instruction set may be used."""
        return feature in self.isa


@dataclass(frozen=True)
class _Extra:
    """An instruction set that may be added to a level by `+name`."""

    feature: str
    flag: str


_V3 = ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "lzcnt", "movbe")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_LEVELS = {
    "x86-64-v4": CpuTarget(
        "cpu:x86-64-v4", "x86_64", _V4, ("-march=x86-64-v4",), "x86-64-v4", (), 16
    ),
    "x86-64-v3": CpuTarget(
        "cpu:x86-64-v3", "x86_64", _V3, ("-march=x86-64-v3",), "x86-64-v3", (), 8
    ),
}
_EXTRAS = {
    "vnni": _Extra("avx512vnni", "-mavx512vnni"),
    "bf16": _Extra("avx512bf16", "-mavx512bf16"),
}
_LLVM_BASELINES = {"x86_64": "x86-64", "aarch64": "generic"}
_SUMMARIES = {
    "cpu:native": "the best of these that this machine can run",
    "cpu:x86-64-v4+vnni+bf16": "AVX-512 with int8 and bf16 dot products (each optional)",
    "cpu:x86-64-v4": "AVX-512 (F, BW, CD, DQ, VL)",
    "cpu:x86-64-v3": "AVX2, FMA, F16C",
    "cpu:portable": "any machine of this kind; slow",
}
KNOWN = tuple(_SUMMARIES)


def list_cpu_targets() -> list[tuple[str, str]]:
    """Names and one line each; `cpu:native` says what it stands for here."""
    native = native_target(host_machine(), host_isa()).name
    return [
        (name, f"{summary} (here: {native})" if name == "cpu:native" else summary)
        for name, summary in _SUMMARIES.items()
    ]


def parse_cpu_target(spec: str) -> CpuTarget:
    """The target of a spec such as `cpu:native`. Raises CompileError listing the known ones."""
    rest = spec.partition(":")[2]
    level, *extras = rest.split("+")
    if level in ("native", "portable") and extras:
        raise CompileError(f"Target '{spec}': 'cpu:{level}' takes no '+' features.")
    if level == "native":
        return native_target(host_machine(), host_isa())
    if level == "portable":
        return _portable(host_machine())
    if level not in _LEVELS:
        raise CompileError(f"Unknown target '{spec}'. Known targets: {', '.join(KNOWN)}.")
    return _extended(_LEVELS[level], extras, spec)


def native_target(machine: str, isa: frozenset[str] | None) -> CpuTarget:
    """The best named target for a machine with these instruction sets."""
    if machine != "x86_64" or isa is None:
        return _portable(machine)
    for target in _LEVELS.values():
        if set(target.isa) <= isa:
            present = [name for name, extra in _EXTRAS.items() if extra.feature in isa]
            return _extended(target, present if target.vector_lanes == 16 else [], target.name)
    return _portable(machine)


def _extended(base: CpuTarget, extras: list[str], spec: str) -> CpuTarget:
    """`base` with extras in canonical order, so that equal targets have equal names."""
    unknown = [name for name in extras if name not in _EXTRAS]
    if unknown:
        raise CompileError(
            f"Target '{spec}': unknown feature '{unknown[0]}'. Known: {', '.join(_EXTRAS)}."
        )
    if extras and base.vector_lanes != 16:
        raise CompileError(f"Target '{spec}': '+{extras[0]}' needs cpu:x86-64-v4.")
    chosen = [(name, extra) for name, extra in _EXTRAS.items() if name in extras]
    features = tuple(extra.feature for _, extra in chosen)
    return replace(
        base,
        name=base.name + "".join(f"+{name}" for name, _ in chosen),
        isa=base.isa + features,
        flags=base.flags + tuple(extra.flag for _, extra in chosen),
        llvm_features=features,
    )


def _portable(machine: str) -> CpuTarget:
    """What the compiler emits for the machine by default; runs on every such machine."""
    cpu = _LLVM_BASELINES.get(machine, "generic")
    return CpuTarget("cpu:portable", machine, (), (), cpu, (), 4)
