"""`inferc bench --profile` on a tiny model: table, JSON, trace, and what the artifact keeps."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import inferc
from inferc import report_file
from inferc.cli.main import main
from inferc.errors import InfercError
from inferc.profiling import EngineStep, record
from inferc.runtime.artifact import check_digests, read_manifest
from tests.e2e.workshop import THREADS, Workshop

SMALL = ["--prompt-tokens", "9", "--new-tokens", "8", "--runs", "2", "--threads", str(THREADS)]


@pytest.fixture
def artifact(workshop: Workshop, tmp_path: Path) -> Path:
    """A copy, for `--save` changes it."""
    copy = tmp_path / "tiny.inferc"
    shutil.copytree(workshop.artifact("llama"), copy)
    return copy


def bench(artifact: Path, *options: object) -> int:
    return main(["bench", str(artifact), "--profile", *SMALL, *map(str, options)])


def test_json_has_every_kernel_with_its_modules(
    artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(artifact, "--concurrency", "1,3", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    kernels = report_file.read(artifact)["phases"]
    shapes = [(p["phase"], p["tokens"], p["sequences"]) for p in found["profiles"]]
    assert shapes == [("prefill", 9, 1), ("decode", 1, 1), ("prefill", 27, 3), ("decode", 3, 3)]
    for entry in found["profiles"]:
        named = [(c["name"], c["modules"]) for c in entry["calls"]]
        assert named == [(k["name"], k["modules"]) for k in kernels[entry["phase"]]["kernels"]]
        assert all(call["predicted_us"] > 0 and call["slowest_us"] >= 0 for call in entry["calls"])
        assert 0 < sum(call["share"] for call in entry["calls"]) <= 1
        assert 0 <= entry["wait_share"] <= 1 and entry["library_us"] <= entry["step_us"]
        assert entry["read_gb_per_second"] > 0 and entry["gflops_per_second"] > 0
        integers = entry["integer_gops_per_second"]
        assert integers.keys() == {"int16", "int8"} and min(integers.values()) > 0
    assert not (artifact / "profile.json").exists()


def test_every_step_lies_within_the_engines(workshop: Workshop) -> None:
    with inferc.load(workshop.artifact("llama"), threads=THREADS) as engine:
        steps = record(engine, 2, 9, 5, seed=0)
        assert [s.step.decode for s in steps] == [False, True, True, True, True]
        check_times(steps)
        plain = engine.generate([[5, 6, 7]], max_tokens=4, ignore_eos=True)
        assert plain[0].token_ids and record(engine, 1, 9, 2, seed=1)


def check_times(steps: Sequence[EngineStep]) -> None:
    before = 0
    for step in steps:
        s = step.step
        assert before <= step.begin_ns <= s.begin_ns <= s.end_ns <= step.end_ns
        assert s.spans_ns.min() >= s.begin_ns and s.spans_ns.max() <= s.end_ns
        inside = (s.spans_ns[:, :, 1] - s.spans_ns[:, :, 0]).sum(axis=1)
        assert (inside > 0).all() and (inside <= s.end_ns - s.begin_ns).all()
        before = step.end_ns


def test_trace_is_a_file_that_viewers_read(
    artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    assert bench(artifact, "--concurrency", "2", "--trace", path) == 0
    out = capsys.readouterr().out
    assert "by kind of kernel" in out and "by kernel call" in out and f"wrote {path}" in out
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    steps = [e for e in events if e["ph"] == "X" and e["name"] == "step"]
    assert [e["args"]["tokens"] for e in steps] == [18, *[2] * 7]
    for step in steps:
        inside = [e for e in events if e["ph"] == "X" and e["tid"] > 0 and within(e, step)]
        assert {e["tid"] for e in inside} == set(range(1, THREADS + 1))
    assert all(any(within(e, s) for s in steps) for e in events if e["ph"] == "X")


def within(event: dict[str, Any], outer: dict[str, Any]) -> bool:
    begin, end = event["ts"], event["ts"] + event["dur"]
    # Microseconds as floats: a thousandth is a nanosecond.
    return bool(outer["ts"] - 1e-3 <= begin and end <= outer["ts"] + outer["dur"] + 1e-3)


def test_saved_profile_is_shown_and_has_a_digest(
    artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(artifact, "--concurrency", "1,2", "--save") == 0
    assert bench(artifact, "--concurrency", "1,2", "--save") == 0  # replaces the first
    manifest = read_manifest(artifact)
    check_digests(artifact, manifest)
    assert {"profile.json", "report.html"} <= manifest.files.keys()
    capsys.readouterr()
    assert main(["inspect", str(artifact)]) == 0
    out = capsys.readouterr().out
    assert "measured on " in out and "waiting us" in out and "also measured: --sequences 2" in out
    assert "1 rows, 1 sequences" in out and "2 rows, 2 sequences" not in out
    assert '"library_us"' in (artifact / "report.html").read_text()
    (artifact / "profile.json").write_text("{}")
    assert main(["bench", str(artifact), *SMALL]) == 4
    assert "profile.json: the file is damaged" in capsys.readouterr().err


def test_what_cannot_be_profiled_is_refused(
    artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", str(artifact), "--save"]) == 5
    assert "--trace and --save: expected with --profile" in capsys.readouterr().err
    assert bench(artifact, "--device", "cuda") == 5
    assert "--profile: measures the kernels of a CPU" in capsys.readouterr().err
    with inferc.load(artifact, threads=1) as engine:
        engine.executor._library.abi_version = 2  # type: ignore[attr-defined]
        with pytest.raises(InfercError, match=r"ABI 2.* cannot measure its kernels; compile"):
            record(engine, 1, 4, 2, seed=0)
