"""What is loaded, and how much memory is used. Times are measured by `bench/`, never here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from inferc.runtime.artifact import read_manifest
from tests.e2e.workshop import Workshop

COMPILER_PACKAGES = ("torch", "transformers", "tvm", "tvm_ffi", "networkx")
OVERHEAD_BYTES = 150 << 20


def loaded(code: str, *arguments: str) -> set[str]:
    """Top-level packages and inferc modules that a fresh process has after `code`."""
    tail = "\nimport sys, json; print(json.dumps(sorted(sys.modules)))"
    out = subprocess.run(
        [sys.executable, "-c", code + tail, *arguments], capture_output=True, text=True, check=True
    )
    names = json.loads(out.stdout.splitlines()[-1])
    return {n.split(".")[0] for n in names} | {n for n in names if n.startswith("inferc")}


def test_import_alone_is_light() -> None:
    modules = loaded("import inferc")
    assert not modules & {*COMPILER_PACKAGES, "rich", "numpy", "jinja2", "tokenizers"}
    assert {m for m in modules if m.startswith("inferc.")} == set()


GENERATE = """
import sys, inferc
with inferc.load(sys.argv[1]) as engine:
    engine.generate("hello", max_tokens=3)
"""


def test_running_needs_no_compiler(workshop: Workshop) -> None:
    modules = loaded(GENERATE, str(workshop.artifact("llama")))
    assert not modules & {*COMPILER_PACKAGES, "rich", "gguf"}
    parts = ("ir", "frontend", "passes", "codegen", "report")
    assert not modules & {f"inferc.{part}" for part in parts}


def test_step_library_needs_no_tvm(workshop: Workshop) -> None:
    data = (workshop.artifact("llama") / "cpu" / "step.so").read_bytes()
    assert data[:4] == b"\x7fELF"
    for name in (b"libtvm", b"TVMFFI", b"TVMBackend"):
        assert name not in data


@pytest.mark.parametrize("module", ["inferc.driver", "inferc.verify", "inferc.frontend.importer"])
def test_compiling_process_has_no_torch(module: str) -> None:
    """torch and TVM run in child processes, which may crash and whose memory goes back."""
    assert not loaded(f"import {module}") & {"torch", "transformers", "tvm"}


PEAK = """
import pathlib, re, sys, inferc
with inferc.load(sys.argv[1], kv_budget_bytes=int(sys.argv[2])) as engine:
    engine.generate(["hello " * 80] * 4, max_tokens=8)
status = pathlib.Path("/proc/self/status").read_text()  # ru_maxrss includes the parent's peak
print(int(re.search(r"VmHWM:\\s+(\\d+)", status)[1]) * 1024)
"""


def test_peak_memory(smollm2_artifact: Path) -> None:
    manifest, kv_budget_bytes = read_manifest(smollm2_artifact), 64 << 20
    out = subprocess.run(
        [sys.executable, "-c", PEAK, str(smollm2_artifact), str(kv_budget_bytes)],
        capture_output=True,
        text=True,
        check=True,
    )
    limit = manifest.memory.weights_bytes + kv_budget_bytes + OVERHEAD_BYTES
    assert int(out.stdout.split()[-1]) < limit
