"""`inferc doctor` on CUDA: which compiler, which GPUs, and the reason where there is none."""

from __future__ import annotations

import importlib.metadata
from types import SimpleNamespace

import pytest

from inferc.cli import doctor
from inferc.codegen import cuda_toolchain
from inferc.codegen.cuda_toolchain import Nvcc
from inferc.errors import InfercError, ToolchainError
from inferc.runtime.executors import cuda_bindings

DRIVER = SimpleNamespace(
    cuDeviceGetCount=lambda: (0, 2),
    cuDeviceGet=lambda index: (0, index),
    cuDeviceGetName=lambda length, device: (0, b"NVIDIA H200\0\0"),
    cuDeviceGetAttribute=lambda which, device: (0, which - device),
    cuDeviceTotalMem=lambda device: (0, 140 << 30),
    CUdevice_attribute=SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=9,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=1,
    ),
)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    version = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: "13.1" if "cuda" in name else version(name)
    )


def test_gpus(
    installed: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cuda_bindings, "open_driver", lambda: DRIVER)
    monkeypatch.setattr(
        cuda_toolchain, "find_cuda_compiler", lambda: Nvcc("/opt/nvcc", "nvcc 13.0.88")
    )
    doctor.print_cuda()
    out = capsys.readouterr().out
    assert "nvcc 13.0.88: /opt/nvcc" in out and "cuda-bindings    13.1" in out
    assert "cuda:0           NVIDIA H200, sm_91, 140 GiB" in out
    assert "cuda:1           NVIDIA H200, sm_80, 140 GiB" in out


def test_nothing_for_cuda(
    installed: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_driver() -> None:
        raise InfercError("no driver here")

    def no_compiler() -> None:
        raise ToolchainError("No CUDA compiler was found")

    monkeypatch.setattr(cuda_bindings, "open_driver", no_driver)
    monkeypatch.setattr(cuda_toolchain, "find_cuda_compiler", no_compiler)
    doctor.print_cuda()
    out = capsys.readouterr().out
    assert "compiler         No CUDA compiler was found" in out
    assert "GPU              no driver here" in out
