"""What a step says of its own time, and that asking changes nothing."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator

import numpy as np
import pytest

from inferc.runtime.executors.step_library import PoolOptions
from tests.codegen.step_runner import Compiled, random_params
from tests.codegen.test_step import PAGES, batch, fused

UNTOUCHED = -1
WORKERS = 3


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compiled]:
    module = fused("llama")
    folder = tmp_path_factory.mktemp("profile")
    made = Compiled(module, random_params(module), folder, PAGES, threads=WORKERS)
    yield made
    made.close()


def processors() -> set[int]:
    """Those that this thread may use; where that cannot be asked nothing is ever pinned."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def calls_of(compiled: Compiled, phase: str) -> int:
    return int(compiled.library.inferc_step_calls(int(phase == "decode")))


def spans(compiled: Compiled, phase: str, new: tuple[int, ...]) -> np.ndarray:
    """`[worker, call, begin and end]` of a step; a guard behind it must stay untouched."""
    size = WORKERS * calls_of(compiled, phase) * 2
    memory = np.full(size + 8, UNTOUCHED, np.int64)
    compiled.step(phase, batch(new, (0,) * len(new), 3), memory)
    assert (memory[size:] == UNTOUCHED).all()
    return memory[:size].reshape(WORKERS, -1, 2)


@pytest.mark.parametrize(("phase", "new"), [("prefill", (9, 4)), ("decode", (1, 1))])
def test_every_call_of_every_worker_has_a_span(
    compiled: Compiled, phase: str, new: tuple[int, ...]
) -> None:
    before = time.monotonic_ns()
    found = spans(compiled, phase, new)
    after = time.monotonic_ns()
    plan = next(p for p in compiled.generated.step.phases if p.name == phase)
    assert found.shape == (WORKERS, len(plan.calls), 2)
    in_order = found.reshape(WORKERS, -1)
    assert (np.diff(in_order, axis=1) >= 0).all()
    assert in_order.min() >= before and in_order.max() <= after
    for number, call in enumerate(plan.calls):
        if call.own_barrier:  # few rows: workers run norms whole
            assert found[:, number, 0].min() >= found[:, number - 1, 1].max(), call


def test_measuring_changes_no_bit(compiled: Compiled) -> None:
    step = batch((7, 2), (0, 0), 5)
    plain = compiled.step("prefill", step)
    size = WORKERS * calls_of(compiled, "prefill") * 2
    np.testing.assert_array_equal(compiled.step("prefill", step, np.empty(size, np.int64)), plain)


@pytest.mark.parametrize(("spin_us", "pinned"), [(0, 0), (1, 1), (10_000, 0)])
def test_options_of_the_pool_change_no_bit(compiled: Compiled, spin_us: int, pinned: int) -> None:
    step = batch((7, 2), (0, 0), 5)
    plain = compiled.step("prefill", step)
    usual = compiled.pool
    options = PoolOptions()
    compiled.library.inferc_pool_defaults(2, ctypes.byref(options))
    assert options.threads == 2 and options.spin_us >= 0
    options.spin_us, options.pinned = spin_us, pinned
    make = compiled.library.inferc_pool_create_with
    make.restype = ctypes.c_void_p
    compiled.pool = ctypes.c_void_p(make(ctypes.byref(options)))
    allowed = processors()
    try:
        np.testing.assert_array_equal(compiled.step("prefill", step), plain)
        assert processors() == allowed  # pinned for the step only
    finally:
        compiled.close()
        compiled.pool = usual


def test_a_pool_without_workers_is_refused(compiled: Compiled) -> None:
    make = compiled.library.inferc_pool_create_with
    make.restype = ctypes.c_void_p
    assert make(ctypes.byref(PoolOptions(0, 50, 0))) is None
