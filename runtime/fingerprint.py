"""What a measurement holds for: the machine that it was made on."""

import hashlib
import os
from pathlib import Path

from inferc.runtime.host import host_isa, host_machine


def host_fingerprint() -> dict[str, str]:
    """Machine, model of the processor, instruction sets, and processors this process may use.

    The sets are a digest, for there may be a hundred; one processor model has different ones under
    different hypervisors.
    """
    isa = " ".join(sorted(host_isa() or ()))
    return {
        "machine": host_machine(),
        "cpu": _cpu_model() or "unknown",
        "isa": hashlib.sha256(isa.encode()).hexdigest()[:16],
        "processors": str(processors()),
    }


def processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_model() -> str | None:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    lines = (line.partition(":") for line in text.splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == "model name"), None)
