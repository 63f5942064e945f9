"""A model compiled for CUDA, end to end on the CPU: its step, its kernels, the executor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.gpu import ours
from bench.gpu.workloads import Workload
from inferc.errors import InfercError
from inferc.runtime.executors.cuda import CudaExecutor
from inferc.runtime.executors.cuda_options import CudaOptions
from inferc.verify import verify
from tests.codegen.cuda.cuda_runner import ORDERS
from tests.e2e.emulated_cuda import compile_emulated, emulated_device, emulation, load_emulated
from tests.e2e.test_batch_invariance import observed, requests
from tests.e2e.workshop import Workshop, ids_of, reference_logits

EXACT = "gemma2"  # in float32: windows and full attention, soft-caps, tied weights
SERVED = "llama"  # as users compile: activations and pages in bf16
TOLERANCE = 1e-5  # of the largest logit: products in float32
SCARCE_PAGES = 6


@pytest.fixture(scope="module")
def artifact(workshop: Workshop) -> Path:
    output = workshop.folder / "artifacts" / "cuda-exact"
    compile_emulated(
        workshop.source(EXACT), EXACT, output,
        target="cuda:sm_80", compute="f32", kv_dtype="f32", sequences=6, step_tokens=48,
    )  # fmt: skip
    return output


def test_logits_whole_in_chunks_and_token_by_token(artifact: Path) -> None:
    """Token by token through graphs, and the last ones without."""
    ids = ids_of(EXACT)
    wanted = reference_logits(EXACT, ids)
    with load_emulated(artifact, emulated_device(artifact)) as engine:
        whole = engine.logits(ids).copy()
        assert np.abs(whole - wanted).max() < TOLERANCE * np.abs(wanted).max()
        for chunk in (16, 1):
            assert np.array_equal(engine.logits(ids, chunk).view(np.int32), whole.view(np.int32))
        executor = engine.executor
        assert isinstance(executor, CudaExecutor)
        assert executor.graphs.replayed == len(ids)
    with load_emulated(artifact, emulated_device(artifact), CudaOptions(graphs=False)) as engine:
        assert np.array_equal(engine.logits(ids[:9], 1).view(np.int32), whole[:9].view(np.int32))


def test_mixed_requests_equal_requests_alone(artifact: Path) -> None:
    """With pages so scarce that sequences are preempted, the prefix cache, widened graphs."""
    asked = [r for r in requests() if len(r.prompt) < 60][:7]
    alone: list[np.ndarray] = []
    device = emulated_device(artifact)
    with load_emulated(artifact, device, prefix_cache=False) as engine:
        page_bytes = engine.executor.budget.nbytes // engine.executor.total_blocks
        for one in asked:
            with observed(engine) as rows:
                engine.generate(list(one.prompt), one.params)
            alone.append(np.array(next(iter(rows.values()))))
    device = emulated_device(artifact)
    with (
        load_emulated(
            artifact,
            device,
            kv_budget_bytes=SCARCE_PAGES * page_bytes,
            chunk_tokens=5,
        ) as engine,
        observed(engine) as rows,
    ):
        for one in asked:
            engine.add_request(list(one.prompt), one.params, priority=one.priority)
        while engine.has_work:
            engine.step()
        assert engine.stats.preemptions > 0 and engine.stats.cached_tokens > 0
    for number, wanted in enumerate(alone):
        assert np.array_equal(np.array(rows[number]).view(np.int32), wanted.view(np.int32)), number


SAMPLED = (
    {}, {"temperature": 0.0, "logprobs": 3}, {"top_k": 5, "repetition_penalty": 1.3},
    {"top_p": 0.8, "presence_penalty": 0.4, "logprobs": 0}, {"logit_bias": {7: 3.0, 9: -np.inf}},
)  # fmt: skip


def test_the_device_samples_the_tokens_of_the_host(artifact: Path) -> None:
    found = []
    for options in (CudaOptions(), CudaOptions(host_sampling=True)):
        device = emulated_device(artifact)
        with load_emulated(artifact, device, options) as engine:
            for seed, more in enumerate(SAMPLED):
                asked = {"temperature": 0.9, "seed": seed, "max_tokens": 6, "ignore_eos": True}
                engine.add_request(ids_of(EXACT, 9 + seed), **asked | more)
            events = [event for _ in range(40) for event in engine.step()]
            assert not engine.has_work
            found.append(sorted(events, key=lambda event: event.request))
            logits_bytes = 4 * len(SAMPLED) * engine.executor.vocab_size
            assert (max(device.copies[-6:]) < logits_bytes) is not options.host_sampling
    assert len(found[0]) == 6 * len(SAMPLED)
    for here, there in zip(*found, strict=True):
        assert (here.request, here.token) == (there.request, there.token)
        assert [t for t, _ in here.top_logprobs] == [t for t, _ in there.top_logprobs]
        assert (here.logprob is None) == (there.logprob is None)
        assert abs((here.logprob or 0) - (there.logprob or 0)) < 1e-9


def test_what_make_gpu_measures(artifact: Path) -> None:
    """On an emulated device times mean nothing, but every launch of the two parts is found."""
    with load_emulated(artifact, emulated_device(artifact), prefix_cache=False) as engine:
        ours.randomise(engine)
        for workload in (Workload("decode", 2, 40), Workload("prefill", 1, 60)):
            assert ours.run(engine, workload, steps=1)["seconds"] > 0
            attention, products = ours.parts(engine, artifact, workload)
            assert attention["workload"] == f"{workload}: attention"
            assert attention["seconds"] > 0 and products["seconds"] > 0
            assert products["must_move_bytes"] > attention["must_move_bytes"] > 0
            assert products["flops"] > 0


@pytest.fixture(scope="module")
def served(workshop: Workshop) -> Path:
    output = workshop.folder / "artifacts" / "cuda-served"
    compile_emulated(workshop.source(SERVED), SERVED, output, target="cuda:sm_80")
    return output


def test_many_rows_have_the_bits_of_few(served: Path) -> None:
    ids = ids_of(SERVED)
    with load_emulated(served, emulated_device(served)) as engine:
        many = engine.logits(ids).copy()
        assert len(many) > 64
        assert np.array_equal(engine.logits(ids, 16).view(np.int32), many.view(np.int32))


@pytest.mark.parametrize("order", ORDERS)
def test_kernels_that_begin_early(served: Path, order: int) -> None:
    """Before the kernel ahead has ended they read nothing that it writes."""
    found = []
    for overlaps in (False, True):
        device = emulated_device(served, overlaps=overlaps)
        assert device.kernels is not None
        device.kernels.inferc_emulation_order(order)
        with load_emulated(served, device, kv_budget_bytes=1 << 17, prefix_cache=False) as engine:
            logits = [engine.logits(ids_of(SERVED, 40), chunk).copy() for chunk in (40, 13)]
            (made,) = engine.generate(
                [ids_of(SERVED, 5)], temperature=0.9, top_k=7, seed=1, max_tokens=4, ignore_eos=True
            )
        device.kernels.inferc_emulation_order(ORDERS[0])
        assert (device.withheld > len(device.launches) // 2) is overlaps
        found.append((np.concatenate(logits).view(np.int32), made.token_ids))
    assert np.array_equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


@pytest.mark.usefixtures("references")
def test_verify_as_served(workshop: Workshop, served: Path) -> None:
    """Within the tolerance of bf16, and not of float32."""
    with emulation(emulated_device(served)):
        found = verify(served, workshop.source(SERVED), tokens=75, device="cuda", store=False)
    assert found.passed and (found.compute, found.kv_dtype) == ("bf16", "bf16")
    assert all(1e-4 < way.distance.relative_error_max < 3e-2 for way in found.ways)


def test_a_failed_launch_names_kernel_and_modules(artifact: Path) -> None:
    device = emulated_device(artifact)
    with load_emulated(artifact, device) as engine:
        engine.logits([1, 2, 3])
        device.failing = device.launches[-1]
        with pytest.raises(InfercError, match=r"could not be launched.*planted") as raised:
            engine.logits([1, 2, 3])
        assert "lm_head" in str(raised.value)
