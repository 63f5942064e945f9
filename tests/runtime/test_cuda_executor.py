"""The CUDA executor on an emulated device, with the toy model as two kernels."""

import ctypes
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from emulated_device import EmulatedDevice
from runtime_artifacts import toy_manifest
from test_runtime_cpu import expected_logits
from toy_cuda import COMPILER, cuda_target, toy_cuda_artifact

from inferc.errors import ArtifactError, InfercError, RequestError
from inferc.runtime import engine as engine_module
from inferc.runtime.artifact import PackedTensor, PackedWeights, read_manifest
from inferc.runtime.block_manager import BlockId
from inferc.runtime.engine import Engine, load
from inferc.runtime.executors import cuda as cuda_module
from inferc.runtime.executors import cuda_memory
from inferc.runtime.executors.cuda import CudaExecutor
from inferc.runtime.executors.cuda_device import KernelName
from inferc.runtime.executors.cuda_options import CudaOptions, from_environment
from inferc.runtime.executors.nvtx import CallCursor, ReportedCall
from inferc.runtime.kv_budget import device_kv_budget
from inferc.runtime.plan import Plan, PlannedSequence, Rows
from inferc.runtime.request import SequenceId
from inferc.runtime.target_choice import Architecture, parse_device, select_target

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_cuda_artifact(tmp_path_factory.mktemp("artifacts") / "toy.inferc")


Open = Callable[..., Engine]
DEFAULT = CudaOptions()


@pytest.fixture
def open_engine(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """`load` with an emulated device in place of the driver."""
    engines = []

    def open_it(device: EmulatedDevice, options: CudaOptions = DEFAULT, **more: object) -> Engine:
        def open_executor(folder, manifest, place, threads, budget_bytes, choice):  # type: ignore[no-untyped-def]
            def budget(room: int):  # type: ignore[no-untyped-def]
                return device_kv_budget(manifest.kv, manifest.limits, budget_bytes, room)

            return CudaExecutor(folder, manifest, device, budget, options)

        monkeypatch.setattr(engine_module, "open_executor", open_executor)
        engines.append(load(artifact, device="cuda", **more))
        return engines[-1]

    yield open_it
    for engine in engines:
        engine.close()


@pytest.mark.parametrize("chunk_tokens", [None, 1, 3])
@pytest.mark.parametrize("graphs", [True, False])
def test_logits(open_engine: Open, chunk_tokens: int | None, graphs: bool) -> None:
    ids = [int(token) for token in np.random.default_rng(0).integers(0, 256, 37)]
    engine = open_engine(EmulatedDevice(), CudaOptions(graphs=graphs))
    assert np.array_equal(engine.logits(ids, chunk_tokens), expected_logits(ids))


def test_generation_with_graphs_in_every_batch(open_engine: Open, artifact: Path) -> None:
    prompts = ["Hello", "Hello, world", "日本", "z"]
    options = {"max_tokens": 12, "ignore_eos": True}
    with load(artifact, threads=1) as cpu:
        wanted = [cpu.generate(prompt, **options)[0].token_ids for prompt in prompts]
    device = EmulatedDevice()
    engine = open_engine(device, kv_budget_bytes=32 * 14)
    assert [c.token_ids for c in engine.generate(prompts, **options)] == wanted
    assert engine.stats.preemptions > 0
    executor = engine.executor
    assert isinstance(executor, CudaExecutor)
    assert 1 <= executor.graphs.captured <= 4 < executor.graphs.replayed
    plain = open_engine(EmulatedDevice(), CudaOptions(graphs=False))
    assert [c.token_ids for c in plain.generate(prompts, **options)] == wanted


def test_one_copy_each_way(open_engine: Open) -> None:
    device = EmulatedDevice()
    engine = open_engine(device)
    engine.generate("ab", max_tokens=1)
    device.copies.clear()
    engine.generate("ab", max_tokens=3, ignore_eos=True)
    assert len(device.copies) == 2 * 3  # inputs and logits of a prefill and two decode steps
    assert set(device.copies[1::2]) == {4 * 259}


def test_a_failed_launch_is_named(open_engine: Open) -> None:
    device = EmulatedDevice()
    engine = open_engine(device)
    device.failing = "toy_walk"
    with pytest.raises(
        InfercError,
        match=r"kernel toy_walk \(of model\.layers\.0, model\.layers\.1, model\.layers\.2, …\)"
        r" could not be launched: CUDA_ERROR_INVALID_VALUE, planted",
    ):
        engine.generate("ab", max_tokens=2)


def test_kernels_of_a_later_cuda_are_refused(open_engine: Open) -> None:
    device = EmulatedDevice()
    device.facts = replace(device.facts, driver_version=12080)
    with pytest.raises(InfercError, match=r"compiled by CUDA 13\.0, and the driver knows CUDA 12"):
        open_engine(device)


def test_out_of_memory_tells_the_plan(open_engine: Open) -> None:
    tight = 256 * 2**20 + 2**16
    with pytest.raises(
        InfercError, match=r"does not fit: it needs 1 MiB \(.* KV pages .*\) and 256"
    ):
        open_engine(EmulatedDevice(total_bytes=tight), kv_budget_bytes=2**20)
    with pytest.raises(InfercError, match=r"MiB weights, .*MiB arena, .* 0 MiB are free"):
        open_engine(EmulatedDevice(total_bytes=1000))
    engine = open_engine(EmulatedDevice(total_bytes=tight - 2**14))
    assert engine.executor.total_blocks == 4 * 64 // 4


def test_weights_arrive_through_small_buffers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors larger than a buffer and with gaps between them, listed in another order."""
    monkeypatch.setattr(cuda_memory, "_STAGING_BYTES", 100)
    stored = np.random.default_rng(0).integers(0, 256, 2000).astype(np.uint8)
    (tmp_path / "weights").write_bytes(stored.tobytes())
    places = ((1216, 700), (320, 5), (64, 250), (1152, 64))
    tensors = tuple(PackedTensor(f"w{i}", "n16", "u8", (n,), o, n, ()) for i, (o, n) in
                    enumerate(places))  # fmt: skip
    manifest = toy_manifest(weights=PackedWeights("weights", tensors))
    device = EmulatedDevice()
    addresses = cuda_memory.upload_weights(device, tmp_path, manifest)
    for address, (offset, nbytes) in zip(addresses, places, strict=True):
        assert ctypes.string_at(address, nbytes) == stored[offset : offset + nbytes].tobytes()
        assert address % 64 == 0
    assert not device.host and max(device.copies) <= 100


def test_ranges_name_steps_kernels_and_modules(
    open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []

    @contextmanager
    def mark(name: str) -> Iterator[None]:
        names.append(name)
        yield

    monkeypatch.setattr(cuda_module, "ranges", lambda wanted: mark if wanted else None)
    engine = open_engine(EmulatedDevice(), CudaOptions(graphs=False, nvtx=True))
    engine.logits([1, 2, 3])
    layers = "model.layers.0, model.layers.1, model.layers.2, …"
    assert names == ["prefill 3 tokens of 1 sequences", f"toy_walk: {layers}", "toy_logits: ?"]


def test_launches_are_timed(open_engine: Open) -> None:
    engine = open_engine(EmulatedDevice())
    executor = engine.executor
    assert isinstance(executor, CudaExecutor)
    whole = engine.logits([1, 2, 3]).copy()
    entry = PlannedSequence(SequenceId(0), 0, (1, 2, 3), (BlockId(0),), Rows.ALL, 0)
    times = executor.profile(Plan(1, (entry,)))
    assert [(t.kernel, t.call) for t in times] == [("toy_walk", 0), ("toy_logits", None)]
    assert [t.milliseconds for t in times] == [1, 1]
    assert np.array_equal(engine.logits([1, 2, 3]), whole)


def test_launches_are_followed_through_the_calls_of_a_step() -> None:
    """Kernels of one file, called twice in a row, and a file that the report does not know."""
    calls = [("rows", "a"), ("linear", "b"), ("linear", "c"), ("rows", "d")]
    cursor = CallCursor([ReportedCall(unit, (module,)) for unit, module in calls])
    launches = [
        ("rows", "rows"), ("linear_split", "linear"), ("linear_merge", "linear"),
        ("linear_split", "linear"), ("sampling_scan", "sampling"), ("rows", "rows"),
    ]  # fmt: skip
    found = [cursor.label(KernelName(kernel, unit)) for kernel, unit in launches]
    assert found == ["a", "b", "b", "c", "?", "d"]


def test_weights_can_be_overwritten(open_engine: Open) -> None:
    device = EmulatedDevice()
    engine = open_engine(device)
    executor = engine.executor
    assert isinstance(executor, CudaExecutor)
    before = engine.logits([1, 2, 3]).copy()
    executor.overwrite_weights(np.array([9, 8, 7], np.uint8))
    assert not np.array_equal(engine.logits([1, 2, 3]), before)
    weights = next(iter(device.memory.values()))[256:-256]  # the file's 64 bytes of header first
    assert weights[64:80].tolist() == [9, 8, 7] * 5 + [9]


def test_devices() -> None:
    assert (parse_device("cpu").kind, parse_device("cuda").index) == ("cpu", 0)
    assert (parse_device("cuda:12").kind, parse_device("cuda:12").index) == ("cuda", 12)
    for bad in ("gpu", "cuda:", "cpu:1", "cuda:x", None):
        with pytest.raises(RequestError, match="expected cpu, cuda or cuda:N"):
            parse_device(bad)  # type: ignore[arg-type]


def test_architectures() -> None:
    assert Architecture(8, 0).runs_on((8, 6)) and not Architecture(8, 6).runs_on((8, 0))
    assert not Architecture(8, 9).runs_on((9, 0))
    assert Architecture(9, 0, True).runs_on((9, 0))
    assert not Architecture(10, 0, True).runs_on((10, 3))


def test_the_best_architecture_is_chosen(artifact: Path) -> None:
    manifest = read_manifest(artifact)
    wide = replace(manifest, targets=(*manifest.targets, cuda_target("sm_86")))
    names = {c: select_target(wide, "cuda", c).name for c in [(8, 0), (8, 6), (8, 9), (9, 0)]}
    assert list(names.values()) == ["cuda:sm_80", "cuda:sm_86", "cuda:sm_86", "cuda:sm_90a"]
    with pytest.raises(
        ArtifactError, match=r"cuda:sm_90a does not run on a device of compute capability 7\.5"
    ):
        select_target(wide, "cuda", (7, 5))
    with pytest.raises(ArtifactError, match=r"expected one such as sm_90a, found 'sm_x'"):
        select_target(replace(manifest, targets=(cuda_target("sm_x"),)), "cuda", (9, 0))
    with pytest.raises(
        ArtifactError, match=r"is not a cuda target\. .*; it runs with device='cpu'"
    ):
        select_target(replace(manifest, targets=manifest.targets[:1]), "cuda")
    assert select_target(manifest).kind == "cpu"
    old = {k: v for k, v in json.loads(manifest.to_json())["targets"][0].items() if v is not None}
    assert "arch" not in old  # an artifact of before is one without these keys


def test_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERC_CUDA", "check-launches,dependent-launch")
    assert from_environment() == CudaOptions(False, True, True, False)
    monkeypatch.setenv("INFERC_CUDA", "grahps")
    with pytest.raises(RequestError, match=r"among no-graphs, .* found 'grahps'"):
        from_environment()
    assert toy_manifest().targets[0].arch is None


def test_without_a_driver(artifact: Path) -> None:
    """On a machine with a GPU this loads; elsewhere it says what is missing."""
    try:
        load(artifact, device="cuda").close()
    except InfercError as error:
        assert any(
            text in str(error)
            for text in (
                "pip install 'inferc[cuda]'", "driver is not installed", "finds no GPU",
                "driver is too old", "does not take these kernels", "cannot be read",
            )
        )  # fmt: skip
