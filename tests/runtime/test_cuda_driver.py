"""The real bindings on a libcuda of our own: calls, conventions, errors, nothing left over."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_runtime_cpu import expected_logits
from toy_cuda import toy_cuda_artifact

from inferc.runtime.engine import load

NVCC = shutil.which("nvcc")
pytest.importorskip("cuda.bindings.driver", reason="needs cuda-python")
pytestmark = pytest.mark.skipif(NVCC is None, reason="needs the toolkit's cuda.h")


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_cuda_artifact(tmp_path_factory.mktemp("artifacts") / "toy.inferc")


@pytest.fixture(scope="module")
def results(artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder, here = tmp_path_factory.mktemp("driver"), Path(__file__).parent
    command = [str(NVCC), "-x", "c", "-shared", "-Xcompiler", "-fPIC", "-cudart", "none", "-o"]
    command += [str(folder / "libcuda.so.1"), str(here / "fake_driver.c")]
    subprocess.run(command, check=True)
    copy = shutil.copytree(artifact, folder / "toy.inferc")
    done = subprocess.run(
        [sys.executable, str(here / "fake_driver_child.py"), str(copy)],
        env={**os.environ, "LD_LIBRARY_PATH": str(folder)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_results(results: dict[str, Any], artifact: Path) -> None:
    assert np.array_equal(np.array(results["logits"], np.float32), expected_logits(list(range(40))))
    with load(artifact, threads=1) as cpu:
        wanted = cpu.generate(["Hello", "z"], max_tokens=6, ignore_eos=True)
    assert results["tokens"] == [list(completion.token_ids) for completion in wanted]
    assert results["graphs"] > 0
    assert results["times"] == [["toy_walk", 0, 2.0], ["toy_logits", None, 2.0]]
    assert results["bandwidth"] == 2 * 2**27 / 2e-3


def test_everything_is_given_back(results: dict[str, Any]) -> None:
    assert results["live"] == results["live after refusals"] == results["live after a drop"] == 0


def test_a_forked_process_has_no_device(results: dict[str, Any]) -> None:
    assert results["forked"] == 7


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("launch", "kernel toy_walk (of model.layers.0, model.layers.1, model.layers.2, …) could"),
        ("launch", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, some text"),
        ("capture", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, some text"),
        ("illegal address", "CUDA_ERROR_ILLEGAL_ADDRESS, an illegal memory access was encountered"),
        ("illegal address", "INFERC_CUDA=check-launches"),
        ("closed", "The engine has been closed"),
        ("no device", "NVIDIA's driver finds no GPU"),
        ("old", "it knows CUDA 12.8, and 13.0 is needed"),
        ("index", "cuda:3: expected a device of this machine (0 only)"),
        ("memory", "KV pages"),
        ("memory", "and 512 MiB are free"),
        ("unfit", "toy_logits.cubin: cuda:0 (Fake 0, compute capability 8.6) does not take these"),
        ("missing", "toy_logits.cubin: the kernels cannot be read"),
    ],
)
def test_errors(results: dict[str, Any], name: str, text: str) -> None:
    assert text in results[name]
