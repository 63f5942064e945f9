"""One artifact for several CPUs: one step library each, everything else shared."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import inferc
from inferc.cli.main import main
from inferc.codegen.targets import parse_target
from inferc.errors import ArtifactError
from inferc.runtime import host
from inferc.runtime.artifact import read_manifest
from inferc.runtime.target_choice import select_target
from tests import tiny
from tests.e2e.workshop import THREADS, Workshop, ids_of, reference_logits

NATIVE = parse_target("cpu:native")
SPEC = "cpu:portable,native"
OPTIONS = {"target": SPEC, "tvm": False}

pytestmark = pytest.mark.skipif(not NATIVE.isa, reason="this machine has the portable target only")


def test_the_best_is_chosen(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact, ids = workshop.artifact("llama", **OPTIONS), ids_of("llama")
    manifest = read_manifest(artifact)
    assert [t.name for t in manifest.targets] == [NATIVE.name, "cpu:portable"]
    assert {t.library for t in manifest.targets} == {
        f"cpu/{NATIVE.variant}/step.so", "cpu/portable/step.so",
    }  # fmt: skip
    assert select_target(manifest).name == NATIVE.name
    with inferc.load(artifact, threads=THREADS) as engine:
        best = engine.logits(ids)
    with inferc.load(workshop.artifact("llama", tvm=False), threads=THREADS) as engine:
        np.testing.assert_array_equal(best, engine.logits(ids))
    monkeypatch.setattr(host, "host_isa", lambda: frozenset({"sse2"}))
    assert select_target(manifest).name == "cpu:portable"
    with inferc.load(artifact, threads=THREADS) as engine:
        plain = engine.logits(ids)
    wanted = reference_logits("llama", ids)
    for found in (best, plain):
        assert np.abs(found - wanted).max() < 1e-4 * np.abs(wanted).max()


def test_damage_is_reported_for_variants_that_do_not_run(
    workshop: Workshop, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.inferc"
    shutil.copytree(workshop.artifact("llama", **OPTIONS), copy)
    library = copy / "cpu" / "portable" / "step.so"
    library.write_bytes(library.read_bytes()[:-1])
    with pytest.raises(ArtifactError, match=r"portable/step\.so: the file is damaged"):
        inferc.load(copy)
    library.unlink()
    with pytest.raises(ArtifactError, match=r"portable/step\.so: .* but it is missing"):
        inferc.load(copy)


def test_none_that_runs_here(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = read_manifest(workshop.artifact("llama", **OPTIONS))
    monkeypatch.setattr("inferc.runtime.target_choice.host_machine", lambda: "riscv64")
    with pytest.raises(ArtifactError, match=r"cannot run on this machine: cpu:.* riscv64"):
        select_target(manifest)


def test_inspect_shows_all(workshop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    artifact = workshop.artifact("llama", **OPTIONS)
    assert main(["inspect", str(artifact), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["target"]["name"] == f"{NATIVE.name},portable"
    assert report["target"]["kernels_of"] == NATIVE.name
    sources = {k["source"] for phase in report["phases"].values() for k in phase["kernels"]}
    assert sources and all((artifact / source).is_file() for source in sources)
    assert main(["inspect", str(artifact)]) == 0
    assert f"kernels shown: {NATIVE.name}" in " ".join(capsys.readouterr().out.split())


def test_same_bytes_again(workshop: Workshop, tmp_path: Path) -> None:
    """In a process of its own, with another hash seed and another order of the targets."""
    first, second = workshop.artifact("llama", **OPTIONS), tmp_path / "again.inferc"
    context = tiny.case_of("llama").context_tokens
    code = (
        f"import inferc; inferc.compile({str(workshop.source('llama'))!r}, {str(second)!r},"
        f" context_tokens={context!r}, target='cpu:native,cpu:portable', tvm=False)"
    )
    environment = os.environ | {"PYTHONHASHSEED": "5"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    for path in first.rglob("*"):
        if path.is_file():
            relative = path.relative_to(first)
            assert (second / relative).read_bytes() == path.read_bytes(), relative
