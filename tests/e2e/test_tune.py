"""`inferc tune`: what it may choose changes no bit, what it writes is applied, and only here."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inferc
from inferc import tuning as tuner
from inferc.cli.main import main
from inferc.errors import ArtifactError, InfercError
from inferc.runtime.artifact import check_digests, read_manifest
from inferc.runtime.artifact_writer import add_file
from inferc.runtime.executors.cpu import CpuExecutor
from inferc.runtime.fingerprint import host_fingerprint
from inferc.runtime.host import default_threads
from inferc.runtime.pool_choice import PoolChoice
from inferc.runtime.tuning import TUNING_FILE, Choices, Tuning, read_tuning
from tests.e2e.workshop import Workshop, ids_of

SMALL = ["--rounds", "2", "--prompt-tokens", "70", "--new-tokens", "3"]
EFFORT = tuner.Effort(rounds=1, prompt_tokens=70, new_tokens=2)


@pytest.fixture
def artifact(workshop: Workshop, tmp_path: Path) -> Path:
    copy = tmp_path / "tiny.inferc"
    shutil.copytree(workshop.artifact("llama"), copy)
    return copy


def keep(artifact: Path, choices: Choices, **changes: Any) -> None:
    tuning = replace(Tuning(host_fingerprint(), choices), **changes)
    add_file(artifact, TUNING_FILE, tuning.to_json())


def all_options(step_tokens: int) -> list[Choices]:
    """Every candidate of every stage, from the defaults."""
    stages = (tuner._threads, tuner._spins, tuner._pins, tuner._chunks)
    return [
        option.choices
        for stage in stages
        for option in stage(Choices(), 2, step_tokens, tuner.Effort(1, 10_000, 2))
    ]


def test_no_candidate_changes_a_bit(workshop: Workshop) -> None:
    ids = ids_of("llama")
    with inferc.load(workshop.artifact("llama"), threads=2) as engine:
        assert isinstance(engine.executor, CpuExecutor)
        plain = engine.logits(ids)
        options = all_options(engine.scheduler.config.step_tokens)
        assert len(options) > 8 and len({o.chunk_tokens for o in options}) > 2
        for choices in options:
            engine.executor.use_pool(choices.threads or 2, choices.pool)
            # Chunks are scaled to the prompt, which is shorter than they are.
            chunk = None if choices.chunk_tokens is None else choices.chunk_tokens // 16
            assert np.array_equal(engine.logits(ids, chunk).view(np.int32), plain.view(np.int32))


def test_a_choice_that_changes_bits_stops_the_tuner(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    with inferc.load(workshop.artifact("llama"), prefix_cache=False, threads=2) as engine:
        monkeypatch.setattr(tuner, "_threads", lambda *a: [])
        right = engine.logits
        calls = iter(range(100))
        monkeypatch.setattr(engine, "logits", lambda *a: right(*a) * (1 + 1e-6 * next(calls)))
        with pytest.raises(InfercError, match="spin_us = 0 changes the model's logits"):
            tuner.tune(engine, 2, EFFORT, lambda text: None)


def test_what_was_tuned_is_written_shown_and_applied(
    artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", str(artifact), *SMALL, "--dry-run"]) == 0
    assert not (artifact / TUNING_FILE).exists()
    assert main(["tune", str(artifact), *SMALL]) == 0
    out = capsys.readouterr().out
    assert "tuned on " in out and f"wrote {artifact / TUNING_FILE}" in out
    manifest = read_manifest(artifact)
    check_digests(artifact, manifest)
    found = read_tuning(artifact, manifest)
    assert found is not None and found.holds_here
    names = [c.choice for c in found.candidates]
    for name in set(names):
        assert sum(c.taken for c in found.candidates if c.choice == name) == 1
    assert "chunk_tokens" in names and all(c.seconds > 0 for c in found.candidates)
    assert main(["inspect", str(artifact)]) == 0
    assert "tuned on " in capsys.readouterr().out


def test_the_loader_takes_the_choices_that_nobody_made(
    artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    make = CpuExecutor.__init__

    def spy(self: CpuExecutor, *args: Any) -> None:
        seen.append(args[3:])
        make(self, *args)

    monkeypatch.setattr(CpuExecutor, "__init__", spy)
    pool = PoolChoice(spin_us=7, pinned=True)
    keep(artifact, Choices(threads=3, pool=pool, chunk_tokens=5))
    with inferc.load(artifact) as engine:
        assert seen[-1] == (3, pool) and engine.scheduler.config.chunk_tokens == 5
        tuned = engine.logits(ids_of("llama"))
    with inferc.load(artifact, threads=1, chunk_tokens=9) as engine:
        assert seen[-1] == (1, pool) and engine.scheduler.config.chunk_tokens == 9
    with inferc.load(artifact, tuned=False) as engine:
        assert seen[-1] == (default_threads(), PoolChoice())
        assert engine.scheduler.config.chunk_tokens is None
        assert np.array_equal(engine.logits(ids_of("llama")), tuned)


def test_another_machine_ignores_it_with_a_note(
    artifact: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(artifact, Choices(chunk_tokens=5), host={**host_fingerprint(), "cpu": "another"})
    with (
        caplog.at_level(logging.WARNING),
        inferc.load(artifact) as engine,
    ):
        assert engine.scheduler.config.chunk_tokens is None
    assert "measured on another machine (another) and is ignored" in caplog.text
    assert main(["inspect", str(artifact)]) == 0
    assert "this is another machine: the defaults are used" in capsys.readouterr().out


def test_a_damaged_file_is_an_error_and_an_unlisted_one_is_nothing(artifact: Path) -> None:
    path = artifact / TUNING_FILE
    path.write_text("what a stopped tuner might leave")
    with inferc.load(artifact) as engine:
        assert engine.scheduler.config.chunk_tokens is None
    add_file(artifact, TUNING_FILE, json.dumps({"schema_version": 9}).encode())
    with pytest.raises(ArtifactError, match="expected tuning schema 1, found 9"):
        inferc.load(artifact)


@pytest.mark.parametrize(
    ("medians", "wins", "best"),
    [
        ([1.0, 0.9, 0.8], [0, 1, 1], 2),
        ([1.0, 0.9, 0.8], [0, 1, 0.5], 1),  # the fastest was so in half of the rounds only
        ([1.0, 0.98], [0, 1], 0),  # by less than the margin
        ([1.0, 1.2], [0, 1], 0),
        ([1.0], [0], 0),
    ],
)
def test_the_default_stays_unless_another_is_faster_for_sure(
    medians: list[float], wins: list[float], best: int
) -> None:
    assert tuner.pick(medians, wins) == best
