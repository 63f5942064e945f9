"""Whole artifacts for 64-bit Arm: compiled here, their step libraries run under an emulator.

Everything but the step library is the real runtime, on this machine.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inferc
from inferc.metrics import distance
from inferc.runtime import host
from inferc.runtime.engine import Engine
from inferc.runtime.executors import step_library
from inferc.runtime.host import canonical_feature, host_isa
from inferc.tolerance import tolerance
from tests.codegen.kernels import remote_library
from tests.e2e.workshop import THREADS, Workshop, ids_of, reference_logits

CALLER = Path(remote_library.__file__).with_name("remote_caller.cpp")
TOOLS = remote_library.find_tools()
FEATURES = "asimd atomics crc32 asimdrdm asimddp i8mm bf16"
KV_BYTES = 1 << 20

pytestmark = pytest.mark.skipif(isinstance(TOOLS, str), reason=str(TOOLS))


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert not isinstance(TOOLS, str)
    program = tmp_path_factory.mktemp("arm") / "caller"
    remote_library.compile_caller(CALLER, program, TOOLS)
    return program


@pytest.fixture
def on_arm(caller: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the runtime believe that this is an Arm machine, and open step libraries there."""
    features = frozenset(map(canonical_feature, FEATURES.split()))
    monkeypatch.setattr(host, "host_isa", lambda: features)
    monkeypatch.setattr("inferc.runtime.target_choice.host_machine", lambda: "aarch64")
    assert not isinstance(TOOLS, str)
    opened: list[remote_library.RemoteLibrary] = []

    def open_library(path: Path) -> Any:
        opened.append(remote_library.RemoteLibrary(path, caller, TOOLS))
        return opened[-1]

    monkeypatch.setattr(step_library, "open_library", open_library)
    yield
    for library in opened:
        library.close()


def announce(holder: Any) -> None:
    """Tell the emulator's side of every array that an object holds."""
    for value in vars(holder).values():
        for array in value if isinstance(value, tuple) else (value,):
            if isinstance(array, np.ndarray) and array.dtype == np.uintp:
                remote_library.pointers(array)
            elif isinstance(array, np.ndarray):
                remote_library.pointer(array)


def logits(artifact: Path, ids: list[int], chunk: int | None = None) -> np.ndarray:
    with inferc.load(artifact, threads=THREADS, kv_budget_bytes=KV_BYTES) as engine:
        announce_steps(engine)
        return engine.logits(ids, chunk)


def announce_steps(engine: Engine) -> None:
    """Buffers grow, so they are announced before every step."""
    executor: Any = engine.executor
    run = executor._library.run

    def announced(args: ctypes.Structure, decode: bool) -> None:
        announce(executor)
        announce(executor._inputs)
        run(args, decode)

    executor._library.run = announced


def test_against_the_model(workshop: Workshop, on_arm: None) -> None:
    ids = ids_of("llama", 40)
    artifact = workshop.artifact("llama", target="cpu:armv8-a", tvm=False)
    found = logits(artifact, ids)
    wanted = reference_logits("llama", ids)
    assert tolerance("f32", "f32").admits(distance(found, wanted))
    np.testing.assert_array_equal(logits(artifact, ids[:9], 1), found[:9])


def test_bits_of_x86(workshop: Workshop, request: pytest.FixtureRequest) -> None:
    """In float32 and without TVM the order of all operations is the same."""
    if not {"avx2", "fma", "f16c"} <= (host_isa() or frozenset()):
        pytest.skip("this machine has no AVX2 to compare with")
    ids = ids_of("llama", 40)
    here = workshop.artifact("llama", target="cpu:x86-64-v3", tvm=False)
    with inferc.load(here, threads=THREADS) as engine:
        wanted = engine.logits(ids)
    request.getfixturevalue("on_arm")
    there = workshop.artifact("llama", target="cpu:armv8-a", tvm=False)
    np.testing.assert_array_equal(logits(there, ids), wanted)


def test_bf16_dots_and_rows_of_tvm(workshop: Workshop, on_arm: None) -> None:
    pytest.importorskip("tvm")
    ids = ids_of("llama", 24)
    target = "cpu:armv8.2-a+dotprod+i8mm+bf16"
    artifact = workshop.artifact("llama", "bfloat16", target=target, tvm=True)
    found = logits(artifact, ids)
    assert any("MathBf16" in f.read_text() for f in (artifact / "cpu").glob("*linear*.cpp"))
    assert tolerance("bf16", "f32").admits(distance(found, reference_logits("llama", ids)))
    np.testing.assert_array_equal(logits(artifact, ids[:5], 1), found[:5])
