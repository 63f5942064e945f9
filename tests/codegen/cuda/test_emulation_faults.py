"""Faults planted into kernels: each must be caught in one of the orders that kernel tests run."""

from __future__ import annotations

import functools
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from inferc.codegen.render import INCLUDE
from inferc.codegen.toolchain import find_compiler
from tests.codegen.cuda.cuda_runner import ORDERS as USUAL_ORDERS
from tests.codegen.cuda.emulated_kernels import (
    EAGER,
    FAIR,
    GREEDY,
    ORDERS,
    REVERSED,
    EmulatedKernels,
    EmulationError,
)

SOURCE = Path(__file__).parent / "emulation_faults.cu"
AHEAD = REVERSED | GREEDY | EAGER
RANDOM = np.random.default_rng(5)
WRONG, WRITTEN = "wrong", "wrote before or behind"
"""How a fault shows, where it is not the launch that fails: by its result, or by guard bytes."""


@dataclass(frozen=True)
class Scenario:
    """A kernel on its inputs, and what it should give."""

    inputs: tuple[np.ndarray, ...]
    expected: np.ndarray
    threads: int
    shared_bytes: int = 0
    n: int = 0
    flags: int = 0

    def outcome(self, kernel: str, order: int) -> str:
        """What is noticed: empty where the result is right."""
        try:
            out = kernels().run(
                kernel, self.inputs, self.expected.shape, threads=self.threads,
                shared_bytes=self.shared_bytes, n=self.n, order=order, flags=self.flags,
            )  # fmt: skip
        except (EmulationError, AssertionError) as error:
            return str(error)
        return "" if np.allclose(out, self.expected, rtol=1e-5, atol=1e-5) else WRONG


@functools.cache
def kernels() -> EmulatedKernels:
    return EmulatedKernels(SOURCE, 90)


def _scenarios() -> dict[str, Scenario]:
    rows = RANDOM.standard_normal((6, 256), dtype=np.float32)
    values = RANDOM.standard_normal((4, 128), dtype=np.float32)
    a, b = (RANDOM.integers(-9, 9, s).astype(np.float32) for s in ((64, 16), (2, 8, 16)))
    halves = tuple((m.view(np.uint32) >> 16).astype(np.uint16) for m in (a, b))
    reversed_rows = rows[:, ::-1].copy()
    return {
        "sums": Scenario((values,), values.sum(1), 128, n=4),
        "ring": Scenario((rows,), reversed_rows, 64, 2048, 6),
        "bulk": Scenario((rows,), reversed_rows, 64, 2048, 6),
        "products": Scenario(halves, a @ (b[0] + b[1]).T, 128, 256),
        "parting": Scenario((), np.ones(128, np.float32), 128, 16),
        "bounds": Scenario((values[0],), values[0], 128, 512),
        "dependent": Scenario((values[0, :64],), values[0, :64], 64, flags=1),
    }


SCENARIOS = _scenarios()


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("order", ORDERS)
def test_kernels_without_a_fault(name: str, order: int) -> None:
    assert SCENARIOS[name].outcome(f"{name}_right", order) == ""


@pytest.mark.parametrize(
    ("kernel", "order", "said"),
    [
        # An order in which it shows, of those that every kernel test runs.
        ("sums_no_barrier", FAIR, WRONG),
        ("sums_no_last_barrier", AHEAD, WRONG),
        ("sums_no_warp_barrier", FAIR, WRONG),
        ("ring_no_wait", FAIR, WRONG),
        ("ring_weak_wait", FAIR, WRONG),
        ("ring_no_commit", FAIR, WRONG),
        ("ring_no_barrier", FAIR, WRONG),
        ("ring_no_last_barrier", AHEAD, WRONG),
        ("bulk_no_wait", AHEAD, "deadlock"),
        ("bulk_no_free_wait", AHEAD, "deadlock.*63 threads from thread 1: mbarrier_wait"),
        ("bulk_no_init_barrier", FAIR, "mbarrier_wait before mbarrier_init"),
        ("bulk_no_init_fence", FAIR, "bulk_copy to an mbarrier that thread 63 has not fenced"),
        ("bulk_wrong_parity", FAIR, WRONG),
        ("bulk_too_many_bytes", FAIR, "deadlock.*threads from thread 0: mbarrier_wait at"),
        ("bulk_too_many_arrivals", FAIR, "deadlock"),
        ("products_no_fence", FAIR, "wgmma without wgmma_fence"),
        ("products_no_commit", FAIR, "not covered by commit and wait"),
        ("products_no_wait", FAIR, "not covered by commit and wait"),
        ("products_weak_wait", FAIR, "not covered by commit and wait"),
        ("products_early_overwrite", AHEAD, WRONG),
        ("products_no_async_fence", FAIR, WRONG),
        ("products_one_warp_less", FAIR, "warp 2 issued 0, warp 0 2"),
        ("parting_barrier", FAIR, "barrier under divergence.* only 0000ffff"),
        ("parting_barrier_after_return", FAIR, "barrier under divergence.* only 0000ffff"),
        ("parting_two_barriers", FAIR, "other threads of the block are in __syncthreads at"),
        ("parting_shuffle", FAIR, "has returned, lane 0 waits for it in __shfl"),
        ("parting_shuffle_after_return", FAIR, "has returned, lane 0 waits for it in __shfl"),
        ("parting_mask", FAIR, "lane 31 has mask fffffffe, lane 1 has mask ffffffff"),
        ("parting_own_mask", FAIR, "mask 0000ffff, which leaves it out"),
        ("parting_matrix_load", FAIR, "has returned, lane 0 waits for it in ldmatrix"),
        ("parting_named_barrier", FAIR, "deadlock.*64 threads from thread 64: barrier_sync"),
        ("dependent_no_wait", FAIR, "calls no grid_dependency_wait"),
        ("dependent_late_wait", FAIR, WRONG),
        ("dependent_too_many_threads", FAIR, "is compiled for 32 threads of a block"),
        ("bounds_shared_behind", FAIR, "beyond dynamic shared memory: byte 512 of 512"),
        ("bounds_shared_before", FAIR, "beyond dynamic shared memory: byte -4 of 512"),
        ("bounds_global_behind", FAIR, WRITTEN),
        ("bounds_global_before", FAIR, WRITTEN),
        ("bounds_unwritten", FAIR, WRONG),
        ("bounds_unwritten_static", FAIR, WRONG),
        ("bounds_copy_not_aligned", FAIR, "cp_async16 of addresses that are not 16-byte aligned"),
        (
            "bounds_load_not_aligned",
            FAIR,
            "thread 1: address .* of 'const .*' is no multiple of 16",
        ),
        ("bounds_array", FAIR, "thread 100: index 100 beyond 'float.*' at emulation_faults.cu:"),
        ("bounds_shift", FAIR, "thread 40: shift of 'int' by 40"),
        ("bounds_no_memory", FAIR, "thread 0: no memory at address"),
        ("bounds_deep", FAIR, "thread 0: no memory at address"),
    ],
)
def test_planted_faults_are_caught(kernel: str, order: int, said: str) -> None:
    assert order in USUAL_ORDERS
    outcome = SCENARIOS[kernel.split("_")[0]].outcome(kernel, order)
    assert re.search(said, outcome, re.S), outcome


_ASAN_MAIN = """
#include "inferc/cuda/step_abi.h"
int main(int, char **argv) {
    const EmulatedKernel kernels[] = {
        {"right", bounds_right_emulated}, {"read", bounds_global_read_emulated},
        {"write", bounds_global_behind_emulated}, {"shared", bounds_shared_behind_emulated}};
    inferc_launch *launch = emulation_launch;
    TestArgs args = {{calloc(128, 4)}, calloc(128, 4), 0};
    const inferc_launch_config config = {{1, 1, 1}, 128, 512, 1, 0};
    return launch((void *)kernels, atoi(argv[1]), &config, &args, sizeof args);
}
"""


@functools.cache
def asan_program(folder: Path) -> Path:
    source, program = folder / "emulated.cpp", folder / "emulated"
    source.write_text(f'#include "{SOURCE}"\n{_ASAN_MAIN}')
    flags = ["-std=c++17", "-Og", "-g1", "-fno-strict-aliasing", "-fsanitize=address"]
    flags += ["-DINFERC_EMULATION=1", "-DINFERC_SM=80", "-I", str(INCLUDE)]
    command = [*find_compiler().command, *flags, str(source), "-o", str(program)]
    subprocess.run(command, check=True, capture_output=True)
    return program


@pytest.mark.parametrize(
    ("kernel", "said", "line"),
    [
        (0, "", ""),
        (1, "READ of size 4", "fault == Bounds::global_read"),
        (2, "WRITE of size 4", "fault == Bounds::global_behind"),
        (3, "WRITE of size 4", "fault == Bounds::shared_behind"),
    ],
)
def test_address_sanitizer_points_at_the_line(
    kernel: int, said: str, line: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    done = subprocess.run(
        [asan_program(folder), str(kernel)], capture_output=True, text=True, check=False,
        env={"ASAN_OPTIONS": "detect_leaks=0"},
    )  # fmt: skip
    assert said in done.stderr and (done.returncode != 0) == bool(said), done.stderr
    lines = SOURCE.read_text(encoding="utf-8").splitlines()
    places = [i + 1 for i, text in enumerate(lines) if line and f"if ({line}" in text]
    assert all(re.search(rf"{SOURCE.name}:{place}\b", done.stderr) for place in places)
