"""What this machine is: name of the machine, instruction sets, threads worth using."""

import os
import platform
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

_MACHINE_NAMES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}
# The kernel and the compilers spell some features differently; ours is the compilers' name.
_FEATURE_NAMES = {"abm": "lzcnt", "pni": "sse3", "asimd": "neon", "asimddp": "dotprod"}


def canonical_feature(name: str) -> str:
    """One spelling for an instruction set: `avx512_vnni`, `AVX512-VNNI` → `avx512vnni`."""
    plain = name.lower().translate({ord(mark): None for mark in "_-."})
    return _FEATURE_NAMES.get(plain, plain)


def host_machine() -> str:
    """The machine in the manifest's spelling, such as `x86_64` or `aarch64`."""
    machine = platform.machine().lower()
    return _MACHINE_NAMES.get(machine, machine)


@cache
def host_isa() -> frozenset[str] | None:
    """Canonical instruction-set names of this machine, or None where they cannot be read."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return parse_cpuinfo(text)


def parse_cpuinfo(text: str) -> frozenset[str] | None:
    """Features listed by the text of /proc/cpuinfo (`flags` on x86, `Features` on Arm)."""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(canonical_feature(name) for name in value.split())
    return None


def features_are_known() -> bool:
    """Whether this machine could be asked for its instruction sets."""
    return host_isa() is not None


def missing_features(wanted: Iterable[str]) -> tuple[str, ...]:
    """Those of `wanted` that this machine lacks; empty when the machine cannot be asked."""
    present = host_isa()
    if present is None:
        return ()
    return tuple(name for name in wanted if canonical_feature(name) not in present)


def default_threads() -> int:
    """One thread for each physical core this process may use, within its CPU quota."""
    allowed = _allowed_cpus()
    cores = {_siblings(cpu) & allowed or frozenset({cpu}) for cpu in allowed}
    quota = _cpu_quota()
    return max(1, len(cores) if quota is None else min(len(cores), quota))


def physical_memory_bytes() -> int | None:
    """Installed memory, or the limit of the control group when that is lower."""
    try:
        installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    limit = _read_line("/sys/fs/cgroup/memory.max")
    return min(installed, int(limit)) if limit is not None and limit.isdigit() else installed


def _allowed_cpus() -> frozenset[int]:
    if sys.platform == "linux":
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _siblings(cpu: int) -> frozenset[int]:
    """Hardware threads that share the core of `cpu`."""
    text = _read_line(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    if text is None:
        return frozenset({cpu})
    members: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        members.update(range(int(first), int(last or first) + 1))
    return frozenset(members)


def _cpu_quota() -> int | None:
    """Whole CPUs granted by the control group. Spinning workers beyond it would be throttled."""
    text = _read_line("/sys/fs/cgroup/cpu.max")
    if text is None or text.startswith("max"):
        return None
    quota, period = text.split()
    return max(1, int(quota) // int(period))


def _read_line(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return None
