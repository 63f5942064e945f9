"""Bad input through the command line: one clear paragraph, an exit code, nothing half-written."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from inferc.cli.main import main
from inferc.runtime import artifact_writer
from tests import tiny
from tests.e2e.workshop import CACHE, Workshop
from tests.frontend import gguf_models
from tests.frontend.captured import warm

COMPILE, ARTIFACT, INTERRUPTED = 2, 4, 130

Failure = Callable[..., str]


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Failure:
    """Compile a source that must be refused; returns the message."""

    def attempt(source: Path, code: int = COMPILE, output: Path | None = None) -> str:
        target = output or tmp_path / "out" / "model.inferc"
        target.parent.mkdir(exist_ok=True)
        assert main(["compile", str(source), "-o", str(target)]) == code
        assert os.listdir(target.parent) == []
        return message(capsys)

    return attempt


def message(capsys: pytest.CaptureFixture[str]) -> str:
    """The one paragraph on stderr."""
    text = re.sub(r"[^\n]*\r", "", capsys.readouterr().err).strip()
    lines = [line for line in text.splitlines() if line.startswith("inferc ")]
    assert len(lines) == 1 and "Traceback" not in text, text
    return lines[0]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A healthy model directory, to be damaged."""
    return tiny.save("llama", tmp_path / "model")


def edit_config(folder: Path, **changes: Any) -> Path:
    file = folder / "config.json"
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    return folder


def edit_weights(folder: Path, **changes: np.ndarray | None) -> Path:
    file = folder / "model.safetensors"
    tensors = load_file(file) | changes
    save_file({k: v for k, v in tensors.items() if v is not None}, file)
    warm(folder, None, CACHE)
    return folder


# -- the model


def test_truncated_gguf(tmp_path: Path, refused: Failure) -> None:
    file = gguf_models.write(tmp_path / "m.gguf", "llama")
    with file.open("r+b") as stream:
        stream.truncate(file.stat().st_size - 1000)
    text = refused(file)
    assert "m.gguf" in text and "truncated" in text


def test_missing_shard(tmp_path: Path, refused: Failure) -> None:
    folder = tiny.save("llama", tmp_path / "model", shards=3)
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) >= 2
    shards[1].unlink()
    text = refused(folder)
    assert shards[1].name in text and "missing" in text


def test_extra_tensor(source: Path, refused: Failure) -> None:
    edit_weights(source, **{"model.layers.0.surplus.weight": np.zeros((4, 8), np.float32)})
    assert "no parameter uses: model.layers.0.surplus.weight [4, 8]" in refused(source)


def test_missing_tensor(source: Path, refused: Failure) -> None:
    edit_weights(source, **{"model.layers.1.mlp.up_proj.weight": None})
    text = refused(source)
    assert "without a stored tensor: model.layers.1.mlp.up_proj.weight [96, 64]" in text


def test_wrong_shape(source: Path, refused: Failure) -> None:
    edit_weights(source, **{"model.layers.1.mlp.up_proj.weight": np.zeros((95, 64), np.float32)})
    text = refused(source)
    assert "layers.1.mlp.up_proj.weight wants [96, 64]" in text and "[95, 64]" in text


def test_unknown_rope_type(source: Path, refused: Failure) -> None:
    edit_config(source, rope_parameters={"rope_type": "spiral", "rope_theta": 1e4, "factor": 2.0})
    text = refused(source)
    assert "unknown rope type 'spiral'" in text and "llama3" in text


def test_both_rope_spellings_in_conflict(source: Path, refused: Failure) -> None:
    edit_config(
        source,
        rope_theta=10000.0,
        rope_scaling={"type": "linear", "factor": 2.0},
        rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
    )
    text = refused(source)
    assert "factor is 2.0 in rope_scaling and 4.0 in rope_parameters" in text


def test_unknown_architecture(source: Path, refused: Failure) -> None:
    edit_config(source, model_type="rwkv9", architectures=["Rwkv9ForCausalLM"])
    assert "model_type 'rwkv9'" in refused(source)


def test_no_model(tmp_path: Path, refused: Failure) -> None:
    assert "does not exist" in refused(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "found neither" in refused(tmp_path / "empty")


# -- the artifact


@pytest.fixture
def artifact(workshop: Workshop, tmp_path: Path) -> Path:
    """A healthy artifact, to be damaged."""
    return Path(shutil.copytree(workshop.artifact("llama"), tmp_path / "model.inferc"))


def run(artifact: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["run", str(artifact), "hello", "--max-tokens", "2"]) == ARTIFACT
    return message(capsys)


def test_corrupted_weights(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = artifact / "weights" / "packed.safetensors"
    data = bytearray(file.read_bytes())
    data[-100] ^= 1
    file.write_bytes(data)
    text = run(artifact, capsys)
    assert "packed.safetensors: the file is damaged" in text and "Compile the model again" in text


def test_corrupted_manifest(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = artifact / "manifest.json"
    file.write_text(file.read_text()[:200])
    assert "manifest.json: the file is damaged, it is not JSON" in run(artifact, capsys)


def test_missing_library(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (artifact / "cpu" / "step.so").unlink()
    assert "step.so: the artifact lists this file, but it is missing" in run(artifact, capsys)


def edit_target(artifact: Path, **changes: Any) -> None:
    file = artifact / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["targets"][0] |= changes
    file.write_text(json.dumps(manifest))


def test_artifact_of_another_isa(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_target(artifact, name="cpu:x86-64-v9", isa=["avx2", "avx2048"])
    text = run(artifact, capsys)
    assert "cpu:x86-64-v9 needs the instruction sets avx2048" in text and "Compile" in text


def test_artifact_of_another_machine(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_target(artifact, machine="s390x")
    assert "was compiled for s390x, and this machine is" in run(artifact, capsys)


# -- the output


def test_existing_output(
    workshop: Workshop, artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(p.name for p in artifact.parent.iterdir())
    assert main(["compile", str(workshop.source("llama")), "-o", str(artifact)]) == ARTIFACT
    assert "exists already" in message(capsys)
    assert sorted(p.name for p in artifact.parent.iterdir()) == before


def test_read_only_output_folder(
    workshop: Workshop, tmp_path: Path, refused: Failure, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o555)
    if os.access(folder, os.W_OK):  # root may write anywhere
        monkeypatch.setattr(artifact_writer.os, "access", lambda *_: False)
    text = refused(workshop.source("llama"), ARTIFACT, folder / "model.inferc")
    assert "the folder is read-only; choose another output" in text


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    """A folder with room for 64 KiB; needs the right to mount."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("no right to mount a small disk; the simulated one is tested below")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_full_disk(workshop: Workshop, small_disk: Path, refused: Failure) -> None:
    text = refused(workshop.source("llama"), ARTIFACT, small_disk / "model.inferc")
    assert "the disk is full" in text and "free some space" in text


def test_write_error_of_a_full_disk(
    workshop: Workshop, refused: Failure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same without a mount: the seal at the end meets a disk that has just become full."""

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(artifact_writer, "_seal", full)
    assert "the disk is full" in refused(workshop.source("llama"), ARTIFACT)


def _heed_interrupts() -> None:
    """A shell starts background jobs with SIGINT ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("stage", ["import", "kernels"])
def test_interrupt(workshop: Workshop, tmp_path: Path, stage: str) -> None:
    """Ctrl-C while a child captures the model, and while C++ compilers run."""
    source, cold, output = workshop.source("llama"), tmp_path / "cold", tmp_path / "out"
    output.mkdir()
    if stage != "import":
        warm(source, None, cold)
    child = subprocess.Popen(
        [sys.executable, "-m", "inferc.cli.main", "compile", str(source), "-o", str(output / "m")],
        env=os.environ | {"INFERC_CACHE": str(cold)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_heed_interrupts,
    )
    assert child.stderr is not None
    while not child.stderr.readline().startswith(stage):
        assert child.poll() is None
    time.sleep(1.0)  # into the stage; a child of ours is running by then
    os.killpg(child.pid, signal.SIGINT)  # as a terminal does: children are interrupted too
    _, text = child.communicate(timeout=600)
    # CPython ends by the signal itself if it interrupted an import; a shell sees 130 for both.
    assert child.returncode in (INTERRUPTED, -signal.SIGINT), text
    assert "interrupted; nothing was left half-written" in text and "Traceback" not in text
    assert os.listdir(output) == []
    leftover = [p for p in cold.rglob("*") if re.search("partial|making", p.name)]
    assert leftover == []
