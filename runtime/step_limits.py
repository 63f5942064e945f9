"""What this machine can do at best, measured by the workers and instruction sets of a step."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from inferc.runtime.executors.step_library import StepLibrary

_ROUNDS = 200_000  # some milliseconds
_INTEGERS = {"int16": 16, "int8": 8}


@dataclass(frozen=True)
class StepLimits:
    """Bytes read from memory, and flops on registers, a second and by all workers.

    `per_second` has the flops by the type of the operands: `f32`, and `int16` and `int8` unless
    the library is older than that measurement.
    """

    bytes_per_second: float
    per_second: Mapping[str, float]


def measure_limits(
    library: StepLibrary, *, total_bytes: int = 256 << 20, runs: int = 5
) -> StepLimits:
    """Medians over `runs`. The bytes should be many times those of the last cache."""
    rates = {"f32": _median(lambda: library.flops_per_second(_ROUNDS), runs)}
    if library.measures_integers:
        for name, bits in _INTEGERS.items():
            rates[name] = _median(partial(library.integers_per_second, bits, _ROUNDS), runs)
    return StepLimits(measure_bandwidth(library, total_bytes=total_bytes, runs=runs), rates)


def measure_bandwidth(
    library: StepLibrary, *, total_bytes: int = 256 << 20, runs: int = 5
) -> float:
    """Its bytes a second alone."""
    data = np.ones(total_bytes // 4, np.float32)
    return _median(lambda: library.read_bandwidth(data), runs)


def _median(measure: Callable[[], float], runs: int) -> float:
    measure()  # wakes the workers
    return statistics.median(measure() for _ in range(runs))
