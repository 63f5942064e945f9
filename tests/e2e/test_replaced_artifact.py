"""Compiling again in a process that has loaded the old artifact: the new one is what loads next."""

from __future__ import annotations

import shutil
from pathlib import Path

import inferc
from inferc.metrics import relative_error
from tests.e2e.workshop import Workshop, ids_of, reference_logits


def test_replaced_artifact(workshop: Workshop, tmp_path: Path) -> None:
    path, ids = tmp_path / "model.inferc", ids_of("llama")
    engines = []
    for name in ("llama", "llama-bias", "llama"):
        if path.exists():
            shutil.rmtree(path)
        shutil.copytree(workshop.artifact(name), path)
        engines.append((name, inferc.load(path)))
    for name, engine in engines:  # all at once, each over its own library
        with engine:
            assert relative_error(engine.logits(ids), reference_logits(name, ids)) < 1e-4
