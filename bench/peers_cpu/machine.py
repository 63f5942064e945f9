"""This machine: what it is, who uses it, and what it can do at best (Linux)."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

PROGRAM = Path(__file__).with_name("limits.c")
READ_MIB, READ_RUNS, RATE_RUNS = 256, 5, 3
_ISA = (("amx_int8", "amx"), ("avx512_bf16", "avx512_bf16"), ("avx512_vnni", "avx512_vnni"),
        ("avx512f", "avx512"), ("avx2", "avx2"))  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """A CPU by name, what it can do, and its cores that may be used here."""

    cpu: str
    isa: str
    cores: int


def describe() -> Machine:
    """The machine under this process."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    pairs = [line.partition(":") for line in lines if ":" in line]
    info = {key.strip(): value.strip() for key, _, value in reversed(pairs)}
    flags = info.get("flags", "").split()
    isa = next((name for flag, name in _ISA if flag in flags), os.uname().machine)
    family = f"family {info.get('cpu family', '?')} model {info.get('model', '?')}"
    cpu = f"{info.get('model name', os.uname().machine)} ({family})"
    return Machine(cpu, isa, len(os.sched_getaffinity(0)))


class Watch:
    """Share of the machine that others than one process used since the watch was made."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.total, self.busy = _machine_ticks()
        self.own = process_ticks(pid)

    def foreign(self) -> float:
        """0 to 1; below about 0.02 it is noise of the counters."""
        total, busy = _machine_ticks()
        others = (busy - self.busy) - (process_ticks(self.pid) - self.own)
        return max(0.0, others / max(1, total - self.total))


def _machine_ticks() -> tuple[int, int]:
    """All ticks and those not idle: user nice system idle iowait irq softirq steal."""
    with open("/proc/stat", encoding="ascii") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    return sum(ticks), sum(ticks) - ticks[3] - ticks[4]


def process_ticks(pid: int) -> int:
    """User and system ticks of a process with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def peak_memory_bytes(pid: int) -> int:
    """The most that was ever resident, mapped files included."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no VmHWM of process {pid}")


class Limits:
    """The probes of `limits.c`, compiled for this machine."""

    def __init__(self, folder: Path, threads: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.program, self.threads = folder / "limits", threads
        options = ["-O3", "-march=native", "-pthread"]
        command = [os.environ.get("CC", "cc"), *options, PROGRAM, "-o", self.program]
        subprocess.run(command, check=True)

    def _lines(self, *arguments: object) -> list[str]:
        command = [str(self.program), *map(str, arguments)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return done.stdout.splitlines()

    def read_bytes_per_s(self) -> float:
        """Best of a few runs over memory that no cache holds: others only ever slow one down."""
        lines = self._lines("read", self.threads, READ_MIB, READ_RUNS)
        return max(float(line) for line in lines)

    def rates(self) -> dict[str, float]:
        """Best operations a second by `type:instruction`; empty where none knows the machine."""
        found: dict[str, float] = {}
        for line in self._lines("rates", self.threads, RATE_RUNS):
            name, rate = line.split()
            found[name] = max(found.get(name, 0.0), float(rate))
        return found
