"""CPU targets. A target is data; `cpu:native` resolves to the named target this machine has.

cpu:x86-64-v4+vnni+bf16     a level and features beyond it
cpu:x86-64-v3,x86-64-v4     several levels: one step library each in one artifact
cpu:x86-64                  every variant of this kind of machine that is worth having
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from inferc.errors import CompileError
from inferc.runtime.host import canonical_feature, host_isa, host_machine


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
        """Folder of the target inside an artifact; of several targets each has one below it."""
        return "cpu"

    @property
    def variant(self) -> str:
        """The name without its kind."""
        return self.name.partition(":")[2]

    @property
    def has_bf16_dots(self) -> bool:
        """Whether products of bf16 pairs are added to a float32 by one instruction."""
        return self.has("avx512bf16") or self.has("bf16")

    @property
    def has_int16_dots(self) -> bool:
        """Whether one instruction multiplies and adds more int16 pairs than another float32."""
        return self.has("avx2")

    def has(self, feature: str) -> bool:
        """Whether an instruction set may be used."""
        return feature in self.isa


@dataclass(frozen=True)
class _Level:
    """A target, and the features that `+name` may add: each in the spelling of the compilers."""

    target: CpuTarget
    extras: Mapping[str, str] = field(default_factory=dict)


_V3 = ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "lzcnt", "movbe")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_ARM82 = ("neon", "atomics", "crc32", "asimdrdm")  # of what 8.2 adds, what a compiler may emit
# Of each machine the most capable first.
_LEVELS = {
    "x86-64-v4": _Level(
        CpuTarget("cpu:x86-64-v4", "x86_64", _V4, ("-march=x86-64-v4",), "x86-64-v4", (), 16),
        {"vnni": "avx512vnni", "bf16": "avx512bf16"},
    ),
    "x86-64-v3": _Level(
        CpuTarget("cpu:x86-64-v3", "x86_64", _V3, ("-march=x86-64-v3",), "x86-64-v3", (), 8)
    ),
    "armv8.2-a": _Level(
        CpuTarget(
            "cpu:armv8.2-a", "aarch64", _ARM82, ("-march=armv8.2-a",), "generic", ("v8.2a",), 4
        ),
        {"dotprod": "dotprod", "i8mm": "i8mm", "bf16": "bf16"},
    ),
    "armv8-a": _Level(
        CpuTarget("cpu:armv8-a", "aarch64", ("neon",), ("-march=armv8-a",), "generic", (), 4)
    ),
}
_SETS = {
    "x86-64": ("x86-64-v4+vnni+bf16", "x86-64-v4", "x86-64-v3"),
    "aarch64": ("armv8.2-a+dotprod+i8mm+bf16", "armv8.2-a+dotprod", "armv8-a"),
}
_LLVM_BASELINES = {"x86_64": "x86-64", "aarch64": "generic"}
_SUMMARIES = {
    "cpu:native": "the best of these that this machine can run",
    "cpu:x86-64": "x86-64-v4+vnni+bf16, x86-64-v4 and x86-64-v3; the best is chosen at load",
    "cpu:x86-64-v4+vnni+bf16": "AVX-512 with int8 and bf16 dot products (each optional)",
    "cpu:x86-64-v4": "AVX-512 (F, BW, CD, DQ, VL)",
    "cpu:x86-64-v3": "AVX2, FMA, F16C",
    "cpu:aarch64": "armv8.2-a+dotprod+i8mm+bf16, armv8.2-a+dotprod and armv8-a; chosen alike",
    "cpu:armv8.2-a+dotprod+i8mm+bf16": "NEON with int8 and bf16 dot products (each optional)",
    "cpu:armv8-a": "64-bit Arm with NEON",
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


def parse_cpu_targets(spec: str) -> tuple[CpuTarget, ...]:
    """The targets of a spec, one or several joined by commas; the most capable first.

    A more capable one has all instruction sets of the less capable, so the number of them orders
    them. Raises CompileError listing the known ones.
    """
    names = [name.removeprefix("cpu:") for name in spec.split(",")]
    each = [parse_cpu_target(f"cpu:{n}") for name in names for n in _SETS.get(name, (name,))]
    return tuple(sorted(dict.fromkeys(each), key=lambda t: (-len(t.isa), t.name)))


def parse_cpu_target(spec: str) -> CpuTarget:
    """The target of a level and its features. Raises CompileError listing the known ones."""
    level, *extras = spec.partition(":")[2].split("+")
    if (level in ("native", "portable") or level in _SETS) and extras:
        raise CompileError(f"Target '{spec}': 'cpu:{level}' takes no '+' features.")
    if level == "native":
        return native_target(host_machine(), host_isa())
    if level == "portable":
        return _portable(host_machine())
    if level not in _LEVELS:
        raise CompileError(
            f"Unknown target '{spec}'. Known targets: {', '.join(KNOWN)};"
            " several are joined by commas."
        )
    return _extended(_LEVELS[level], extras, spec)


def native_target(machine: str, isa: frozenset[str] | None) -> CpuTarget:
    """The best named target for a machine with these instruction sets."""
    for level in _LEVELS.values():
        target = level.target
        if isa is not None and target.machine == machine and set(target.isa) <= isa:
            present = [n for n, f in level.extras.items() if canonical_feature(f) in isa]
            return _extended(level, present, target.name)
    return _portable(machine)


def _extended(level: _Level, names: list[str], spec: str) -> CpuTarget:
    """A level with extras in canonical order, so that equal targets have equal names."""
    base, known = level.target, level.extras
    if names and not known:
        raise CompileError(f"Target '{spec}': {base.name} takes no '+' features.")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise CompileError(
            f"Target '{spec}': unknown feature '{unknown[0]}'. Known: {', '.join(known)}."
        )
    chosen = {name: feature for name, feature in known.items() if name in names}
    return replace(
        base,
        name=base.name + "".join(f"+{name}" for name in chosen),
        isa=base.isa + tuple(canonical_feature(f) for f in chosen.values()),
        flags=_flags(base, tuple(chosen.values())),
        llvm_features=base.llvm_features + tuple(chosen.values()),
    )


def _flags(base: CpuTarget, features: tuple[str, ...]) -> tuple[str, ...]:
    """On x86 a feature is an option of its own, on Arm a part of the architecture's."""
    if base.machine == "x86_64":
        return (*base.flags, *(f"-m{feature}" for feature in features))
    return ("+".join([*base.flags, *features]),)


def _portable(machine: str) -> CpuTarget:
    """What the compiler emits for the machine by default; runs on every such machine."""
    cpu = _LLVM_BASELINES.get(machine, "generic")
    return CpuTarget("cpu:portable", machine, (), (), cpu, (), 4)
