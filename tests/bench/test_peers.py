"""The harness of CPU peers: limits, protocol, failures, rows, report. No time is asserted."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from bench.peers_cpu import artifacts, cli, environments, models, random_qwen2
from bench.peers_cpu.catalog import FIGURES, MODELS, PEERS, Peer
from bench.peers_cpu.footnotes import marks
from bench.peers_cpu.home import ROOT, BuildFailed, Home, tree_bytes
from bench.peers_cpu.machine import Limits, Machine, Watch, describe, peak_memory_bytes
from bench.peers_cpu.process import Launch, Worker, WorkerFailed
from bench.peers_cpu.report import BEGIN, END, put_into_docs, section
from bench.peers_cpu.rows import (
    FLOATS,
    Column,
    Limit,
    Row,
    Setting,
    Size,
    Timing,
    agreement,
    best,
    make_row,
    merge,
    operands,
    ratio,
    read_rows,
    share_of_limit,
    write_rows,
)
from bench.peers_cpu.session import measure, prompts

DECODE, X8, PREFILL, LOAD = (
    FIGURES[name] for name in ("decode", "decode x8", "prefill 512", "load")
)
SIZE = Size(weight_bytes=100_000_000, flops=240_000_000, prefill_flops=200_000_000)
RATES = {"fp32:fma": [100e9], "int8:dot": [400e9], "bf16:dot": [200e9], "int16:dot": [300e9]}
LIMIT = Limit([19e9, 20e9, 26e9], RATES)
MACHINE = Machine("Some CPU", "avx2", 2)
SETTING = Setting(MODELS["smollm2-q4_1"], SIZE, MACHINE, 2, "2026-01-02")


def column(*values: float, foreign: float = 0.0) -> Column:
    return Column([Timing(value, foreign, (int(value),)) for value in values])


def row(ours: Column, peers: dict[str, Column], figure: str = "decode") -> Row:
    return make_row(SETTING, FIGURES[figure], LIMIT, ours, peers)


class OneProbe:
    def read_bytes_per_s(self) -> float:
        return 1e10

    def rates(self) -> dict[str, float]:
        return {"fp32:fma": 1e11}


def fake(tmp_path: Path, **options: str) -> Launch:
    python = Path(sys.executable)
    return Launch(python, "fake", tmp_path / "none", 2, options, {}, tmp_path / "worker.log")


# Limits


def test_limits_compile_and_are_positive(tmp_path: Path) -> None:
    limits = Limits(tmp_path / "new", 2)
    assert limits.read_bytes_per_s() > 0
    rates = limits.rates()
    if "avx2" in Path("/proc/cpuinfo").read_text():
        assert {name.partition(":")[0] for name in rates} >= {"fp32", "int16", "int8"}
    assert all(rate > 0 for rate in rates.values())


def test_the_machine_is_described_and_watched() -> None:
    assert describe().cpu and describe().cores >= 1
    assert 0 <= Watch(os.getpid()).foreign() <= 1
    assert peak_memory_bytes(os.getpid()) > 1 << 20


# Shares


def test_decode_is_bound_by_reading() -> None:
    share = share_of_limit(DECODE, 100.0, SIZE, LIMIT, FLOATS)
    assert share == (pytest.approx(100 * 100e6 / 20e9), "read")


def test_many_sequences_are_bound_by_arithmetic() -> None:
    value = 400.0
    share = share_of_limit(X8, value, SIZE, LIMIT, FLOATS)
    assert share == (pytest.approx(8 * 240e6 / 200e9 * value / 8), "bf16:dot")
    share = share_of_limit(X8, value, SIZE, LIMIT, ["int8"])
    assert share == (pytest.approx(100e6 / 20e9 * value / 8), "read")


def test_prefill_leaves_the_head_out() -> None:
    share = share_of_limit(PREFILL, 500.0, SIZE, LIMIT, ["int8"])
    assert share == (pytest.approx(500 * 200e6 / 400e9), "int8:dot")
    assert share_of_limit(PREFILL, 500.0, SIZE, Limit([1e9], {}), FLOATS) is None
    assert share_of_limit(LOAD, 0.1, SIZE, LIMIT, FLOATS) is None


def test_the_limit_is_that_of_operands_that_may_be_rounded_so() -> None:
    quantised, plain = MODELS["smollm2-q4_1"], MODELS["smollm2-bf16"]
    assert LIMIT.rate(operands(quantised, int8=False)) == ("int16:dot", 300e9)
    assert LIMIT.rate(operands(plain, int8=False)) == ("bf16:dot", 200e9)
    assert LIMIT.rate(operands(quantised, int8=True)) == ("int8:dot", 400e9)


def test_ratios_tell_what_is_better() -> None:
    slow, fast = column(1.0, 2.0, 3.0), column(4.0, 4.0, 4.0)
    assert ratio(DECODE, fast, slow) == ratio(LOAD, slow, fast) == 2
    assert best(DECODE, {"slow": slow, "fast": fast}) == "fast"
    assert best(LOAD, {"slow": slow, "fast": fast}) == "slow"
    assert best(DECODE, {"gone": Column([], "crashed")}) is None


def test_disturbed_timings_count_only_if_most_are() -> None:
    quiet = [Timing(10.0, 0.0), Timing(12.0, 0.01)]
    assert Column([*quiet, Timing(99.0, 0.5)]).median() == 11
    assert Column([quiet[0], Timing(99.0, 0.5), Timing(98.0, 0.5)]).median() == 98


def test_agreement_is_of_first_tokens() -> None:
    ours = Column([Timing(1, 0, (1, 2)), Timing(1, 0, (3, 4))])
    theirs = Column([Timing(1, 0, (1, 2)), Timing(1, 0, (3, 5))])
    assert agreement(ours, theirs) == 0.75
    assert agreement(ours, Column([])) is None


# The protocol


def test_a_worker_answers(tmp_path: Path) -> None:
    worker = Worker(fake(tmp_path), 60)
    try:
        assert worker.hello["version"] == "fake 1" and worker.hello["load_s"] >= 0
        answer = worker.run([[1, 2], [3, 4]], 2)
        assert answer.tokens == [[3, 4, 5], [7, 8, 9]] and answer.rest_tokens == 4
        assert worker.run([[5]], 0).tokens == [[5]]
        assert worker.peak_memory_bytes() > 1 << 20
    finally:
        worker.close()
    assert "stdout as well" in (tmp_path / "worker.log").read_text()


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"fail": "load"}, "ended with 1: RuntimeError: there is no such model")],
)
def test_a_worker_that_does_not_load(tmp_path: Path, options: dict[str, str], reason: str) -> None:
    with pytest.raises(WorkerFailed, match=reason):
        Worker(fake(tmp_path, **options), 60)


def test_a_worker_that_takes_too_long(tmp_path: Path) -> None:
    with pytest.raises(WorkerFailed, match="no answer within 0 s"):
        Worker(fake(tmp_path), 0)


def test_prompts_are_new_each_round_and_the_same_for_all() -> None:
    assert prompts(X8, 1) == prompts(X8, 1) != prompts(X8, 2)
    assert [len(ids) for ids in prompts(PREFILL, 0)] == [512]
    assert len(prompts(X8, 0)) == 8


def test_a_session_survives_what_fails(tmp_path: Path) -> None:
    launches = {
        "good": fake(tmp_path),
        "raises": fake(tmp_path, fail="run"),
        "dies": fake(tmp_path, fail="exit"),
        "missing": "not built: no compiler",
    }
    figures = [DECODE, X8, PREFILL, LOAD, FIGURES["process"], FIGURES["peak memory"]]
    measured = measure(launches, figures, 2, OneProbe(), 60)
    good = measured.columns["good"]
    assert [len(good[figure.name].timings) for figure in figures] == [2] * 6
    assert good["decode x8"].median() == 8 * 64 / 0.25
    assert good["prefill 512"].median() == 512 / 0.5
    assert agreement(good["decode"], measured.columns["raises"]["decode"]) == 1
    for name, reason in (("raises", "no room for several"), ("dies", "ended with 3")):
        assert reason in (measured.columns[name]["decode x8"].failed or "")
        assert measured.columns[name]["prefill 512"].median() == 512 / 0.5
    assert all(c.failed == launches["missing"] for c in measured.columns["missing"].values())
    assert len(measured.limits["decode"].read_bytes_per_s) == 3
    assert measured.limits["decode"].rates["fp32:fma"] == [1e11] * 3
    assert measured.versions["good"] == "fake 1"


def test_rounds_end_in_time_but_for_one(tmp_path: Path) -> None:
    ticks = iter(range(1000))  # one a round, after three at the beginning

    def clock() -> float:
        return float(next(ticks))

    for most_s, wanted in ((0.0, 1), (7.0, 3), (100.0, 9)):
        launches = {"good": fake(tmp_path)}
        found = measure(launches, [DECODE], 9, OneProbe(), 60, most_s=most_s, clock=clock)
        assert len(found.columns["good"]["decode"].timings) == wanted


# Rows


def test_a_row_says_all_that_is_asked_for() -> None:
    made = row(column(100.0, 110.0, 120.0), {"a": column(50.0, 55.0), "b": Column([], "crashed")})
    assert (made["figure"], made["model"], made["weights"]) == ("decode", "SmolLM2-135M", "Q4_1")
    assert made["weight_bytes"] == SIZE.weight_bytes and made["threads"] == 2
    assert made["inferc"] == 110 and made["peers"] == {"a": 52.5, "b": "failed: crashed"}
    assert made["best_peer"] == "a" and made["ratio"] == pytest.approx(110 / 52.5, rel=1e-3)
    assert made["share_of_limit"] == pytest.approx(0.55)
    assert made["limit"] == {"name": "read", "unit": "GB/s", "median": 20, "spread": [19, 26]}
    assert made["spread"] == {"inferc": [100, 120], "a": [50, 55]}
    assert made["machine"] == {"cpu": "Some CPU", "isa": "avx2", "cores": 2}
    json.dumps(made)


def test_a_row_of_ours_that_failed() -> None:
    made = row(Column([], "ended by SIGSEGV"), {"a": column(50.0)})
    assert made["inferc"] == "failed: ended by SIGSEGV"
    assert made["ratio"] is None and made["share_of_limit"] is None


def test_rows_are_replaced_by_key(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "peers.json"
    write_rows(path, [row(column(1.0), {}), row(column(2.0), {}, "prefill 512")])
    other = {**row(column(3.0), {}), "machine": {"cpu": "another", "isa": "avx2", "cores": 2}}
    write_rows(path, [row(column(4.0), {}), other])
    assert [r["inferc"] for r in read_rows(path)] == [4, 2, 3]
    assert merge([], [other]) == [other]
    assert read_rows(tmp_path / "nothing.json") == []


def test_a_file_of_other_rows_is_refused_before_measuring(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text('[{"perplexity": 12.7}]')
    with pytest.raises(SystemExit, match="expected rows with figure"):
        cli.main(["run", "--home", str(tmp_path), "--results", str(path), "--models", "qwen2-bf16"])


# The report


def test_the_report_shows_medians_spread_shares_and_failures(tmp_path: Path) -> None:
    crashed = Column([], "ended by SIGABRT: assert")
    peers = {"llama.cpp": column(50.0, 55.0, foreign=0.5), "OpenVINO int8": crashed}
    rows = [row(column(100.0, 120.0), peers), row(column(0.2), {"llama.cpp": column(0.4)}, "load")]
    text = section(rows)
    assert "### Some CPU, avx2, 2 threads" in text and "Measured 2026-01-02" in text
    assert "- reading memory: 20 GB/s (19 to 26)" in text
    assert "| SmolLM2-135M, Q4_1 | 55%, 2.10x |  |  |  |  |" in text
    assert "| figure | inferc | of the limit | against the best | llama.cpp ¹ | OpenVINO" in text
    ours = "| decode, tokens/s | 110 (100-120) | 55% of reading | 2.10x |"
    assert f"{ours} 52.5\\* (50-55) | failed |" in text
    assert "| load, s | 0.2 |  | 2.00x | 0.4 |  |" in text
    assert "- OpenVINO int8: failed: ended by SIGABRT: assert" in text
    docs = tmp_path / "performance.md"
    docs.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    put_into_docs(docs, text)
    put_into_docs(docs, text)
    assert docs.read_text() == f"before\n{BEGIN}\n\n{text.rstrip()}\n\n{END}\nafter\n"


def test_the_report_sets_both_arithmetics_beside_the_same_peers() -> None:
    ours, fast, peer = column(100.0), column(150.0), {"llama.cpp": column(50.0)}
    anew = {"OpenVINO int8": column(75.0)}
    decode, limit = FIGURES["decode"], LIMIT
    rows = [
        make_row(SETTING, decode, limit, ours, peer),
        make_row(SETTING, decode, limit, ours, anew, peer_weights="int8"),
        make_row(SETTING, decode, limit, fast, peer, int8=True),
        make_row(SETTING, decode, limit, fast, anew, peer_weights="int8", int8=True),
    ]
    text = section(rows)
    both = "| decode, tokens/s | 100 | 50% of reading | {} | 150 | 75% of reading | {} |"
    assert both.format("2.00x", "3.00x") + " 50 |" in text
    assert both.format("1.33x", "2.00x") + " 75 |" in text
    assert text.count("#### ") == 1 and "quantise the weights a second time" in text


def test_every_peer_is_footnoted_by_its_arithmetic() -> None:
    assert marks("inferc", "Q4_1") == "" and marks("inferc int8", "Q4_1") == " ¹"
    assert marks("llama.cpp", "Q4_1") == " ¹" and marks("llama.cpp", "bf16") == " ²"
    assert marks("OpenVINO int4", "Q4_1") == " ³ ⁴" and marks("OpenVINO bf16", "bf16") == ""
    used = "".join(marks(name, w.weights) for name in PEERS for w in MODELS.values())
    assert all(mark in used for mark in "¹²³⁴")


def test_the_report_wants_its_marks(tmp_path: Path) -> None:
    docs = tmp_path / "performance.md"
    docs.write_text("nothing")
    with pytest.raises(SystemExit, match="expected the marks"):
        put_into_docs(docs, "text")
    assert section([]) == "No run so far.\n"


# What is built


def test_which_peers_run_which_weights() -> None:
    quantised, plain = MODELS["smollm2-q4_1"], MODELS["smollm2-bf16"]
    names = {name for name, peer in PEERS.items() if peer.fits(quantised)}
    assert "OpenVINO int8" in names and "OpenVINO bf16" not in names and "inferc int8" in names
    names = {name for name, peer in PEERS.items() if peer.fits(plain)}
    assert "OpenVINO int8" not in names and "OpenVINO bf16" in names and "inferc int8" not in names
    assert PEERS["OpenVINO bf16"].equal_weights(plain)
    assert not PEERS["OpenVINO int8"].equal_weights(quantised)


def test_a_slow_model_is_asked_for_fewer_tokens() -> None:
    qwen2 = MODELS["qwen2-bf16"]
    assert qwen2.shortened(X8).new_tokens == qwen2.new_tokens < X8.new_tokens
    assert qwen2.shortened(X8).prompt_tokens == qwen2.prompt_tokens < X8.prompt_tokens
    assert qwen2.shortened(PREFILL) == PREFILL and MODELS["smollm2-q4_1"].shortened(X8) == X8


def test_environments_come_in_order() -> None:
    wanted = cli.needed_environments([PEERS["OpenVINO int8"]])
    assert wanted == ["inferc", "llama.cpp", "openvino-export", "openvino"]
    assert {p.environment for p in PEERS.values() if p.environment} <= set(
        environments.ENVIRONMENTS
    )


@pytest.mark.parametrize(
    ("isa", "variables"), [("avx2", []), ("avx512_vnni", ["IK", "PYTHONPATH"])]
)
def test_the_wheel_of_ik_will_do_on_avx2_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isa: str, variables: list[str]
) -> None:
    monkeypatch.setattr(environments, "describe", lambda: Machine("Some CPU", isa, 2))
    found = environments.start_variables(Home(tmp_path), "ik_llama.cpp")
    assert [name.removesuffix("_LLAMA_CPP_LIB_PATH") for name in sorted(found)] == variables


def test_a_build_that_fails_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, tries = Home(tmp_path), []

    def build(home: Home) -> None:
        tries.append(1)
        if len(tries) == 1:
            home.run("step", [sys.executable, "-c", "print('no compiler'); raise SystemExit(4)"])

    monkeypatch.setitem(environments.ENVIRONMENTS, "x", environments.Environment("x", build))
    assert environments.why_not(home, "x") == "not built"
    assert "ended with 4: no compiler" in (environments.build(home, "x") or "")
    assert "no compiler" in (environments.why_not(home, "x") or "")
    assert environments.build(home, "x") is None and environments.why_not(home, "x") is None
    assert environments.build(home, "x") is None and len(tries) == 2


def test_one_run_works_in_a_folder_at_a_time(tmp_path: Path) -> None:
    with Home(tmp_path).alone():
        with pytest.raises(SystemExit, match="another run works"), Home(tmp_path).alone():
            pass
    with Home(tmp_path).alone():
        pass


def test_half_of_a_model_is_never_taken_for_it(tmp_path: Path) -> None:
    path = tmp_path / "model"

    def half(part: Path) -> None:
        part.write_text("half")
        raise BuildFailed("stopped")

    with pytest.raises(BuildFailed):
        models._once(path, half)
    assert not path.exists()
    models._once(path, lambda part: part.write_text("whole") and None)
    assert path.read_text() == "whole" and tree_bytes(path) == tree_bytes(tmp_path) == 5


def test_rows_of_a_session_keep_requantised_peers_apart(tmp_path: Path) -> None:
    names = ["inferc", "inferc int8", "llama.cpp", "OpenVINO int8"]
    measured = measure({name: fake(tmp_path) for name in names}, [DECODE], 1, OneProbe(), 60)
    found = cli.rows(SETTING, measured, [DECODE])
    told = [(r["weights"], r["equal_weights"], list(r["peers"])) for r in found]
    assert told == [
        ("Q4_1", True, ["llama.cpp"]),
        ("Q4_1, peer int8", False, ["OpenVINO int8"]),
        ("Q4_1, int8 activations", True, ["llama.cpp"]),
        ("Q4_1, int8 activations, peer int8", False, ["OpenVINO int8"]),
    ]
    assert found[0]["same_first_token"] == {"llama.cpp": 1} and found[0]["versions"]


def test_a_random_model_is_the_same_in_both_forms(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    import numpy as np
    from safetensors.numpy import load_file

    shape = random_qwen2.Shape(
        hidden=64, layers=2, heads=4, kv_heads=2, inner=96, vocab=400, context=128
    )
    random_qwen2.write_hf(tmp_path / "hf", shape)
    random_qwen2.write_gguf(tmp_path / "m.gguf", shape)
    stored = load_file(tmp_path / "hf" / "model.safetensors")
    found = {t.name: t for t in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    for hf, name, size in random_qwen2.tensors(shape):
        other = gguf.dequantize(found[name].data, found[name].tensor_type)
        assert stored[hf].shape == size
        assert np.array_equal(stored[hf].astype(np.float32), other.astype(np.float32)), name
    assert set(found) == {name for _, name, _ in random_qwen2.tensors(shape)}
    size = cli.size_of(tmp_path / "m.gguf")
    matrices = 2 * (64 * (64 + 32 + 32 + 64) + 3 * 64 * 96)
    assert size.prefill_flops == 2 * matrices and size.flops == 2 * (matrices + 400 * 64)
    assert size.weight_bytes == 2 * (matrices + 400 * 64) + 4 * (5 * 64 + 2 * (64 + 32 + 32))


def test_an_artifact_of_an_older_compiler_is_compiled_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, source, target = Home(tmp_path), tmp_path / "m.gguf", tmp_path / "m.inferc"
    source.write_text("model")
    compiled: list[str] = []

    def run(self: Home, log: str, command: list[object], **options: object) -> None:
        compiled.append(log)
        target.mkdir(exist_ok=True)
        (target / "manifest.json").write_text(f"{len(compiled)}")

    monkeypatch.setattr(Home, "run", run)
    version = ["1"]
    monkeypatch.setattr(artifacts, "find_compiler", lambda: version[0])
    for what, times in (("new", 1), ("same", 1), ("compiler", 2), ("file", 3), ("artifact", 4)):
        if what == "compiler":
            version[0] = "2"
        elif what == "file":
            source.write_text("another model")
        elif what == "artifact":  # compiled over by somebody else
            (target / "manifest.json").write_text("other")
        artifacts.up_to_date(home, source, target, PEERS["inferc"])
        assert len(compiled) == times, what
    artifacts.up_to_date(home, source, target, PEERS["inferc int8"])
    assert len(compiled) == 5


def test_the_fingerprint_is_of_all_sources(tmp_path: Path) -> None:
    root, source = tmp_path / "root", tmp_path / "m.gguf"
    source.write_text("model")
    header = root / "codegen" / "include" / "inferc" / "matmul.h"
    header.parent.mkdir(parents=True)
    header.write_text("int one;")
    first = artifacts.fingerprint(source, PEERS["inferc"], root)
    assert first == artifacts.fingerprint(source, PEERS["inferc"], root)
    header.write_text("int two;")
    assert first != artifacts.fingerprint(source, PEERS["inferc"], root)
    assert all(Path(ROOT / folder).is_dir() for folder in artifacts.COMPILER)


def test_peers_of_one_engine_have_forms_of_their_own() -> None:
    home, weights = Home(Path("home")), MODELS["smollm2-q4_1"]
    fitting: list[Peer] = [peer for peer in PEERS.values() if peer.fits(weights)]
    forms = {peer.name: models.model_path(home, weights, peer).name for peer in fitting}
    assert forms["inferc"] == "smollm2-q4_1.inferc"
    assert forms["inferc int8"] == "smollm2-q4_1-int8.inferc"
    assert forms["llama.cpp"] == forms["ik_llama.cpp"] == weights.file
    assert forms["OpenVINO int8"] == "smollm2-openvino-int8"
