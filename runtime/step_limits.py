"""What this machine can do at best, measured by the workers and instruction sets of a step."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import numpy as np

from inferc.runtime.executors.step_library import StepLibrary

_ROUNDS = 200_000  # some milliseconds


@dataclass(frozen=True)
class StepLimits:
    """Bytes read from memory, and float32 flops on registers, a second and by all workers."""

    bytes_per_second: float
    flops_per_second: float


def measure_limits(
    library: StepLibrary, *, total_bytes: int = 256 << 20, runs: int = 5
) -> StepLimits:
    """Medians over `runs`. The bytes should be many times those of the last cache."""
    data = np.ones(total_bytes // 4, np.float32)
    library.read_bandwidth(data)
    library.flops_per_second(_ROUNDS)
    return StepLimits(
        statistics.median(library.read_bandwidth(data) for _ in range(runs)),
        statistics.median(library.flops_per_second(_ROUNDS) for _ in range(runs)),
    )
