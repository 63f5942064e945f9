"""What the GPU does at best: copying, and multiplying matrices of bf16; by torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from bench.gpu.results import Limits

COPY_BYTES = 1 << 30
MATRIX = 8192


def measure(device: str = "cuda", copy_bytes: int = COPY_BYTES, matrix: int = MATRIX) -> Limits:
    """The best of some tries each."""
    import torch

    source = torch.empty(copy_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_s = best(partial(target.copy_, source), device)
    del source, target
    a, b = (torch.randn(matrix, matrix, device=device, dtype=torch.bfloat16) for _ in range(2))
    product_s = best(partial(torch.matmul, a, b), device)
    return Limits(2 * copy_bytes / copy_s, 2 * matrix**3 / product_s)


def best(work: Callable[[], object], device: str, tries: int = 10, repeats: int = 5) -> float:
    """Least seconds of one call."""
    times = []
    for _ in range(tries):
        wait(device)
        start = time.perf_counter()
        for _ in range(repeats):
            work()
        wait(device)
        times.append((time.perf_counter() - start) / repeats)
    return min(times)


def wait(device: str) -> None:
    """Until the device has done everything."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize()
