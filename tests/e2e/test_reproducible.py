"""Two compilations of one input give the same bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from tests import tiny
from tests.e2e.workshop import Workshop


def compile_cold(source: Path, folder: Path, seed: str) -> dict[str, bytes]:
    """Compile in a process of its own, with its own cache and hash seed; all files by name."""
    output = folder / "model.inferc"
    environment = os.environ | {"INFERC_CACHE": str(folder / "cache"), "PYTHONHASHSEED": seed}
    command = [sys.executable, "-m", "inferc.cli.main", "compile", str(source), "-o", str(output)]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    return {str(p.relative_to(output)): p.read_bytes() for p in output.rglob("*") if p.is_file()}


def test_same_input_same_bytes(workshop: Workshop, tmp_path: Path) -> None:
    source = workshop.source("gemma3")
    first = compile_cold(source, tmp_path / "one", "1")
    second = compile_cold(source, tmp_path / "another-folder", "2")
    assert {"manifest.json", "report.json.gz", "report.html", "cpu/step.so"} <= first.keys()
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []


def test_tiny_models_are_deterministic_by_name() -> None:
    """Sinks too, which transformers leaves as they come."""
    first, second = (tiny.model.__wrapped__("gpt_oss").state_dict() for _ in range(2))
    assert [key for key in first if not np.array_equal(first[key], second[key])] == []
