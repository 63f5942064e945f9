"""`inferc verify`: passes what is right, and fails what is wrong, however plausible its text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import inferc
from inferc import reference, reference_child, reference_models
from inferc.cli.main import main
from inferc.errors import InfercError, RequestError
from inferc.metrics import distance
from inferc.reference import ReferenceRequest
from inferc.tolerance import Tolerance, tolerance
from inferc.verify import verify
from tests import tiny
from tests.e2e.faults import compile_with
from tests.e2e.workshop import Workshop
from tests.frontend import gguf_models

pytestmark = pytest.mark.usefixtures("references")
TOKENS = 75


def test_healthy_artifact(
    workshop: Workshop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact = Path(shutil.copytree(workshop.artifact("gemma2"), tmp_path / "model.inferc"))
    source = workshop.source("gemma2")
    assert main(["verify", str(artifact), str(source), "--tokens", str(TOKENS)]) == 0
    text = capsys.readouterr().out
    assert (
        "passed: the tolerance of compute f32 with KV f32 is 0.0001 in a row, 0.0001 in the mean"
        in text
    )
    assert "64 of 64 equal" in text and "agree bit for bit: yes" in text
    stored = json.loads((artifact / "verification.json").read_text())
    assert stored["passed"] and stored["loader"] == "transformers"
    assert all(way["distance"]["relative_error_max"] < 1e-5 for way in stored["ways"])
    with inferc.load(artifact) as engine:  # the digests include the new file
        assert engine.manifest is not None and "verification.json" in engine.manifest.files


def test_failure_is_an_exit_code(
    workshop: Workshop,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = workshop.source("gemma2")
    artifact = compile_with("a dropped soft-cap", source, tmp_path / "faulty", monkeypatch)
    command = ["verify", str(artifact), str(source), "--tokens", str(TOKENS), "--no-store"]
    assert main(command) == 1
    assert "FAILED" in capsys.readouterr().out
    assert not (artifact / "verification.json").exists()


def test_source_of_another_size(tmp_path: Path) -> None:
    source = tiny.save("llama", tmp_path / "other")
    file = source / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"num_hidden_layers": 3}))
    with pytest.raises(InfercError, match=r"no weights for model\.layers\.2\."):
        reference_models.load(ReferenceRequest(str(source), ((1, 2),)))


def test_too_many_tokens(workshop: Workshop) -> None:
    with pytest.raises(RequestError, match="expected 1 to 512, the artifact's context"):
        verify(workshop.artifact("llama"), workshop.source("llama"), tokens=513)


def test_empty_prompt(workshop: Workshop) -> None:
    with pytest.raises(RequestError, match="the text holds no token"):
        verify(workshop.artifact("llama"), workshop.source("llama"), prompt="", tokens=9)


def test_missing_transformers(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()  # the real `reference`
    monkeypatch.setattr(reference.importlib.util, "find_spec", lambda name: None)
    command = ["verify", str(workshop.artifact("llama")), str(workshop.source("llama"))]
    assert main(command) == 3
    assert "torch and transformers, not installed here" in capsys.readouterr().err


def test_reference_is_the_model(workshop: Workshop) -> None:
    """The child process computes what the model of this process does, in float64 nearly so."""
    ids = tuple(int(t) for t in tiny.ids("gemma2", 1, 40)[0])
    wanted = tiny.logits("gemma2", np.array([ids]))[0]
    request = ReferenceRequest(str(workshop.source("gemma2")), (ids, ids[:3]), "float64", 5, (0,))
    with reference.reference(request) as found:
        assert found.logits[0].dtype == np.float64
        assert distance(found.logits[0], wanted).relative_error_max < 1e-5
        assert distance(found.logits[1], wanted[:3]).relative_error_max < 1e-5
        assert len(found.greedy) == 5 and 0 not in found.greedy
        scratch = found.logits[0].filename  # type: ignore[attr-defined]
    assert not Path(scratch).exists()


def test_distance() -> None:
    wanted = np.array([[1.0, 2.0, 2.0], [0.0, 3.0, 4.0]])
    ours = wanted + np.array([[0.3, 0.0, 0.0], [0.0, 2.0, 0.0]])
    found = distance(ours, wanted)
    assert found.relative_error_max == pytest.approx(0.4)
    assert found.relative_error_mean == pytest.approx(0.25)
    assert found.top1_agreement == 0.5 and found.kl_max > found.kl_mean > 0 and found.finite
    assert not distance(ours * [[np.nan], [1.0]], wanted).finite


def test_tolerance_is_that_of_the_coarser() -> None:
    assert tolerance("f32", "f32") == Tolerance(1e-4, 1e-4)
    assert tolerance("f32", "bf16").max > tolerance("f32", "f16").max > 1e-4
    assert tolerance("int8", "f16") == tolerance("int8", "f32")
    bad = distance(np.full((1, 4), np.nan), np.ones((1, 4)))
    assert not tolerance("int8", "f32").admits(bad)


@pytest.mark.parametrize(("case", "loader"), [("llama", "transformers"), ("granite", "inferc")])
def test_gguf_is_read_by_transformers_where_it_can(case: str, loader: str, tmp_path: Path) -> None:
    ids = tuple(range(40))
    path = gguf_models.write(tmp_path / "m.gguf", case)
    loaded = reference_models.load(ReferenceRequest(str(path), (ids,)))
    assert loaded.loader == loader, loaded.notes
    with torch.no_grad():
        wanted = gguf_models.model(case)(torch.tensor([ids])).logits[0].numpy()
    found = reference_child.logits(loaded.model, ids)
    assert distance(found, wanted).relative_error_max < 1e-5


@pytest.mark.parametrize("name", ["phi3-longrope-short", "phi3-longrope-long"])
def test_longrope_factors_are_those_of_the_artifact(name: str, workshop: Workshop) -> None:
    """Transformers takes the factors by the batch's length, an artifact by its longest sequence."""
    ids = tuple(range(20))
    request = ReferenceRequest(
        str(workshop.source(name)), (ids,), context_tokens=tiny.CASES[name].context_tokens
    )
    loaded = reference_models.load(request)
    assert loaded.notes == (f"longrope: {name[14:]}_factor for all lengths, as in the artifact.",)
    with inferc.load(workshop.artifact(name)) as engine:
        found = distance(engine.logits(ids), reference_child.logits(loaded.model, ids))
    assert found.relative_error_max < 1e-4
