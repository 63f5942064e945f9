"""The toy artifact with targets for CPU and GPU."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

from runtime_artifacts import fill_toy

from inferc import report_file
from inferc.runtime.artifact import Manifest, TargetEntry
from inferc.runtime.artifact_writer import write_artifact
from inferc.runtime.host import host_machine

COMPILER = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)


def cuda_target(arch: str) -> TargetEntry:
    return TargetEntry(
        f"cuda:{arch}", "cuda", host_machine(), (), "cuda/step.so", "", 1, arch, f"cuda/{arch}",
        "13.0",
    )  # fmt: skip


def toy_cuda_artifact(folder: Path) -> Path:
    """Write the artifact; its cubins are what fake_driver.c takes for some."""

    def fill(folder: Path) -> Manifest:
        manifest = fill_toy(folder)
        (folder / "cuda/sm_80").mkdir(parents=True)
        for unit in ("toy_walk", "toy_logits"):
            (folder / f"cuda/sm_80/{unit}.cubin").write_bytes(b"cubin")
        here = Path(__file__).parent
        command = [str(COMPILER), "-O1", "-shared", "-fPIC", "-Wall", "-Werror"]
        command += ["-I", str(here.parents[1] / "codegen/include"), "-o", f"{folder}/cuda/step.so"]
        command += ["-x", "c", str(here / "toy_cuda_step.c")]
        command += ["-x", "c++", str(here / "toy_cuda_launch.cpp")]
        subprocess.run(command, check=True)
        kernels = [{"name": "toy_walk", "modules": [f"model.layers.{i}" for i in range(5)]}]
        report = {"phases": {"prefill": {"kernels": kernels}}}
        (folder / report_file.REPORT_FILE).write_bytes(report_file.encode(report))
        targets = (*manifest.targets, cuda_target("sm_80"), cuda_target("sm_90a"))
        return replace(manifest, targets=targets)

    write_artifact(folder, fill)
    return folder
