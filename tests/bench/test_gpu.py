"""`make gpu` without a GPU: what it asks for, measures and writes, with made-up figures."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from runtime_artifacts import fill_toy

import inferc
from bench.gpu import __main__ as gpu
from bench.gpu import correctness, limits, ours, peers, tree
from bench.gpu.checkpoint import write_awq
from bench.gpu.results import (
    BEGIN,
    END,
    Check,
    Figure,
    Limits,
    Results,
    _target,
    put_into_docs,
    read,
    table,
)
from bench.gpu.workloads import MODELS, QUICK, WORKLOADS, Workload, mixed_requests
from inferc.errors import CompileError
from inferc.runtime.artifact_writer import write_artifact

LIMITS = Limits(4e12, 800e12)
STEP = Workload("decode", 1, 1024)


def figure(engine: str, seconds: float | None, **more: Any) -> Figure:
    return Figure(engine, "m", str(STEP), "decode", 1, 1, seconds, 16e9, 32e9, **more)


def results() -> Results:
    return Results(
        {"gpu": "NVIDIA H200", "cuda": "13.0"},
        LIMITS,
        [Check("llama: parity", True, "largest error 1e-06"), Check("racecheck", None, "not here")],
        [figure("inferc", 5e-3), figure("peer", 8e-3), figure("other", None, note="no room")],
    )


def test_shares() -> None:
    assert figure("inferc", 5e-3).share(LIMITS) == pytest.approx(0.8)
    assert figure("inferc", None).share(LIMITS) is None
    prefill = Figure("inferc", "m", "prefill 2k", "prefill", 1, 2048, 0.1, 16e9, 40e12)
    assert prefill.share(LIMITS) == pytest.approx(0.5)


def test_results_are_written_and_read(tmp_path: Path) -> None:
    results().write(tmp_path / "deep" / "gpu-x.json")
    assert read(tmp_path / "deep" / "gpu-x.json") == results()
    data = json.loads((tmp_path / "deep" / "gpu-x.json").read_text())
    assert [entry["share"] for entry in data["figures"]] == [0.8, pytest.approx(0.5), None]
    assert results().passed
    assert not Results({}, checks=[Check("x", False, "")]).passed


def test_tables() -> None:
    text = table(results())
    assert "copy 4000 GB/s, bf16 800 TFLOP/s" in text
    assert "| llama: parity | passed | largest error 1e-06 |" in text
    assert "| racecheck | not run | not here |" in text
    assert "| workload | inferc | peer | other | of the limit | asked for |" in text
    row = "| decode 1 x 1k | 5.00 ms, 200 tokens/s | 8.00 ms, 125 tokens/s | no room | 80% | 88% |"
    assert row in text


def test_targets() -> None:
    assert _target("m", "decode 1 x 16k") == 0.88 and _target("m", "decode 8 x 1k") is None
    assert _target("m", "decode 8 x 1k: attention") == 0.85
    assert _target("m", "prefill 2k: products") == 0.80 and _target("m", "prefill 2k") is None
    assert _target("m", "mixed, 64 requests") is None
    assert _target("m-int4", "decode 1 x 1k") == 0.75


def test_weights_of_4_bits_are_taken(tmp_path: Path) -> None:
    """The sparse checkpoint is one that the importer knows, with the bytes that it should have."""
    model = MODELS["llama-3.1-8b-int4"]
    config = model.config(layers=1) | {"vocab_size": 512}
    write_awq(tmp_path / "model", model.shape, config)
    report = inferc.plan(tmp_path / "model", context_tokens=256, tvm=False)
    products = {
        w["dtype"] for w in report["weights"] if "layers" in w["name"] and "proj" in w["name"]
    }
    assert products and all("4" in dtype for dtype in products), products


def test_sections_of_other_machines_stay(tmp_path: Path) -> None:
    docs = tmp_path / "performance.md"
    docs.write_text(f"before\n{BEGIN}\n{END}\nafter\n")
    put_into_docs(docs, "h200", "first\n")
    put_into_docs(docs, "a100", "other\n")
    put_into_docs(docs, "h200", "second\n")
    text = docs.read_text()
    assert "first" not in text and text.index("## GPU: a100\n\nother") < text.index("second")
    assert text.startswith(f"before\n{BEGIN}\n") and text.endswith(f"{END}\nafter\n")
    docs.write_text("nothing")
    with pytest.raises(SystemExit, match="expected the marks"):
        put_into_docs(docs, "h200", "x")


def test_the_docs_have_the_marks() -> None:
    text = gpu.DOCS.read_text()
    assert BEGIN in text and END in text


def test_arguments() -> None:
    args = gpu.arguments([])
    assert args.stages == list(gpu.STAGES) and args.models == list(MODELS) and not args.quick
    assert gpu.arguments(["--stages", "limits", "--quick"]).stages == ["limits"]
    with pytest.raises(SystemExit):
        gpu.arguments(["--models", "gpt-5"])
    assert (
        gpu.slug("NVIDIA H200") == "h200" and gpu.slug("NVIDIA A100-SXM4-80GB") == "a100-sxm4-80gb"
    )


def test_workloads_are_those_of_the_issue() -> None:
    names = [str(workload) for workload in WORKLOADS]
    assert names[:4] == ["decode 1 x 1k", "decode 8 x 1k", "decode 64 x 1k", "decode 256 x 1k"]
    assert names[-3:] == ["prefill 2k", "prefill 16k", "mixed, 64 requests"]
    assert MODELS["llama-3.1-8b"].config()["hidden_size"] == 4096
    assert MODELS["qwen3-30b-a3b"].config(layers=2)["num_hidden_layers"] == 2
    assert all(prompt + answer <= 2048 for prompt, answer in mixed_requests(WORKLOADS[-1]))


def arguments(**changes: Any) -> Namespace:
    args = gpu.arguments(["--quick", "--models", "llama-3.1-8b"])
    return Namespace(**vars(args) | changes)


def test_all_stages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(limits, "measure", lambda device: LIMITS)
    monkeypatch.setattr(correctness, "check_all", lambda names, *a: [Check(names[0], True, "")])
    monkeypatch.setattr(ours, "compile_model", lambda *a: tmp_path / "artifact")
    asked: list[list[str]] = []

    def child(command: Any) -> list[dict[str, Any]]:
        asked.append(list(command))
        return [{"workload": str(QUICK[0]), "seconds": 1e-3, "tokens": 1, "must_move_bytes": 2e9}]

    found = gpu.run(arguments(), Results({}), "cuda:sm_90a", tmp_path, child)
    assert [command[0] for command in asked] == ["bench.gpu.ours", *["bench.gpu.peers"] * 2]
    assert json.loads(asked[0][-1])["workloads"][0]["batch"] == 1
    assert len(found.figures) == 3 * len(QUICK)
    assert found.figures[0].share(LIMITS) == pytest.approx(0.5)
    assert found.figures[1].note == "its process ended early"
    assert found.checks == [Check("llama", True, "")]


def test_a_model_that_does_not_compile_is_in_the_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*args: Any) -> Path:
        raise CompileError("no kernel fits")

    monkeypatch.setattr(ours, "compile_model", refuse)
    monkeypatch.setattr(correctness, "compile_case", refuse)
    found = gpu.run(
        arguments(stages=["inferc"]), Results({}), "cuda:sm_90a", tmp_path, lambda c: []
    )
    assert {f.note for f in found.figures} == {"does not compile: no kernel fits"}
    checks = correctness.check_all(["llama"], tmp_path, "cuda:sm_90a", "cuda:0")
    assert [c.passed for c in checks] == [None, None]


def test_checks_tell_what_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    ok = correctness._run("x", [sys.executable, "-c", "print('largest error 1')"])
    assert ok == Check("x", True, "largest error 1")
    bad = correctness._run("x", [sys.executable, "-c", "raise SystemExit('a|b')"])
    assert bad == Check("x", False, "a/b")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    assert correctness.sanitize("x", "memcheck", ["true"]).passed is None


def test_our_steps_run(tmp_path: Path) -> None:
    """On the CPU's toy: plans are what an engine takes, and figures come out."""
    write_artifact(tmp_path / "toy.inferc", fill_toy)
    with inferc.load(tmp_path / "toy.inferc", threads=1, kv_budget_bytes=32 * 40) as engine:
        decode = ours.run(engine, Workload("decode", 2, 21))
        assert decode["tokens"] == 2 and decode["seconds"] > 0
        assert ours.run(engine, Workload("prefill", 1, 40))["tokens"] == 40
        assert "room for 160 tokens" in ours.run(engine, Workload("decode", 4, 60))["note"]
        assert (
            ours.run(engine, Workload("mixed", 3, 24))["tokens"] == 32 + 61 + 61
        )  # to the context of 64


def test_limits_are_measured() -> None:
    measured = limits.measure("cpu", copy_bytes=1 << 16, matrix=16)
    assert measured.copy_bytes_per_second > 0 and measured.bf16_flops_per_second > 0


def test_a_peer_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch, "compile", lambda forward, **options: forward)
    config = MODELS["llama-3.1-8b"].config(layers=1) | {
        "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 8, "vocab_size": 1024,
    }  # fmt: skip
    asked = [Workload("decode", 2, 40), Workload("prefill", 1, 32), Workload("mixed", 2, 40)]
    rows = peers.measure("torch.compile + SDPA", config, "cpu", asked)
    assert [row.get("tokens") for row in rows] == [2, 32, None]
    assert all(row["seconds"] > 0 for row in rows[:2]) and rows[2]["note"]


def test_inferc_is_importable_from_links() -> None:
    tree.link_tree()
    code = (
        "import inferc.codegen.render as r, inferc.runtime.engine, inferc.cli.main;"
        "assert r.INCLUDE.joinpath('inferc/step_abi.h').is_file(); print(inferc.__file__)"
    )
    code = f"import sys; sys.path[:0] = {[str(tree.TREE), *sys.path]!r}; {code}"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True, text=True, cwd="/", check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert str(tree.TREE) in done.stdout
    assert tree.missing() in ([], ["cuda-python"])
