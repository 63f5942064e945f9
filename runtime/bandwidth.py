"""The machine's read bandwidth, measured: the limit that decode is set against."""

from __future__ import annotations

import statistics
import threading
import time

import numpy as np

_CHUNK_BYTES = 1 << 20


def read_bandwidth(threads: int, *, total_bytes: int = 256 << 20, runs: int = 5) -> float:
    """Median bytes a second of `threads` threads reading `total_bytes` of memory.

    Every thread walks several streams at once, since one stream leaves a core waiting; numpy
    releases the lock inside a reduction, so the threads really run side by side.
    """
    data = np.ones(total_bytes // 8, np.uint64)
    parts = np.array_split(data, threads)
    _timed(parts)
    return statistics.median(total_bytes / _timed(parts) for _ in range(runs))


def _timed(parts: list[np.ndarray]) -> float:
    ready = threading.Barrier(len(parts) + 1)
    workers = [threading.Thread(target=_read, args=(part, ready)) for part in parts]
    for worker in workers:
        worker.start()
    ready.wait()
    start = time.perf_counter()
    for worker in workers:
        worker.join()
    return time.perf_counter() - start


def _read(part: np.ndarray, ready: threading.Barrier) -> None:
    ready.wait()
    np.bitwise_or.reduce(part)
