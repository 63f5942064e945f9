"""Artifacts for CUDA without a GPU and without nvcc: their kernels run by emulation.

The artifact is made by `inferc.compile` as always, but for its cubins, which are empty. Its host
library launches; what it launches are the same kernel files, compiled over the emulation header.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import inferc
from inferc.runtime import engine as engine_module
from inferc.runtime.artifact import Manifest
from inferc.runtime.engine import Engine
from inferc.runtime.executors.cuda import CudaExecutor
from inferc.runtime.executors.cuda_options import CudaOptions
from inferc.runtime.kv_budget import device_kv_budget
from inferc.runtime.pool_choice import PoolChoice
from inferc.runtime.target_choice import DeviceName
from tests import tiny
from tests.codegen.cuda.cuda_runner import emulated_library
from tests.runtime.emulated_device import EmulatedDevice

STEP_FILE = "step.cpp"


@dataclass(frozen=True)
class NoCubins:
    """In place of a CUDA compiler."""

    version: str = "none 13.0"
    where: str = "nowhere"

    def compile_cubin(
        self, source: Path, output: Path, arch: str, include: Path, shown_as: str
    ) -> str:
        output.write_bytes(b"not machine code")
        return ""


def compile_emulated(source: Path, name: str, output: Path, **options: Any) -> Manifest:
    """Compile a tiny case for CUDA, without cubins."""
    context = tiny.case_of(name).context_tokens
    with mock.patch("inferc.driver.find_cuda_compiler", lambda *archs: NoCubins()):
        return inferc.compile(source, output, context_tokens=context, tvm=False, **options)


def emulated_device(artifact: Path, sm: int = 80, overlaps: bool = False) -> EmulatedDevice:
    """A device that knows the kernels of an artifact."""
    folder = artifact / "cuda"
    codes = {path.stem: path.read_text() for path in sorted(folder.glob("*.cu"))}
    library = emulated_library(codes, (folder / STEP_FILE).read_text(), sm)
    return EmulatedDevice(divmod(sm, 10), kernels=library, overlaps=overlaps)


@contextmanager
def emulation(device: EmulatedDevice, options: CudaOptions | None = None) -> Iterator[None]:
    """What is loaded with device="cuda" runs on an emulated device."""

    def open_executor(
        folder: Path,
        manifest: Manifest,
        place: DeviceName,
        threads: int | None,
        kv: int | None,
        choice: PoolChoice,
    ) -> CudaExecutor:
        del threads, choice
        assert place.kind == "cuda"
        return CudaExecutor(
            folder, manifest, device,
            lambda room: device_kv_budget(manifest.kv, manifest.limits, kv, room),
            options or CudaOptions(),
        )  # fmt: skip

    with mock.patch.object(engine_module, "open_executor", open_executor):
        yield


@contextmanager
def load_emulated(
    artifact: Path, device: EmulatedDevice, options: CudaOptions | None = None, **more: Any
) -> Iterator[Engine]:
    """`inferc.load` of an artifact on an emulated device."""
    with emulation(device, options), inferc.load(artifact, device="cuda", **more) as engine:
        yield engine
