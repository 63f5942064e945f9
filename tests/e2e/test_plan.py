"""`inferc plan`: the artifact's report without the artifact, and from a config alone."""

from __future__ import annotations

import ctypes
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import inferc
from inferc import report_file
from inferc.cli.main import main
from inferc.errors import CompileError
from inferc.ir.cost import Workload
from inferc.report.machines import MACHINES
from inferc.report.model import phase
from tests import quantised_models, tiny
from tests.e2e.workshop import Workshop

NAMES = ["llama", "qwen3_moe", "gpt_oss", "deepseek_v3"]


def costs(report: dict[str, Any]) -> list[tuple[str, ...]]:
    """Every kernel of both phases with its formulas: what must not depend on where weights lie."""
    fields = ("name", "kernel", "arithmetic", "flops", "bytes_read", "bytes_written")
    return [
        (phase, *(kernel[f] for f in fields))
        for phase, data in report["phases"].items()
        for kernel in data["kernels"]
    ]


def test_report_is_the_artifacts(workshop: Workshop) -> None:
    artifact, source = workshop.artifact("llama"), workshop.source("llama")
    planned = inferc.plan(source, context_tokens=tiny.case_of("llama").context_tokens)
    assert json.loads(json.dumps(planned)) == report_file.read(artifact)


@pytest.mark.parametrize("name", NAMES)
def test_config_alone_gives_the_same_plan(workshop: Workshop, name: str) -> None:
    source = workshop.source(name)
    alone = inferc.plan(source / "config.json", dtype="f32")
    whole = inferc.plan(source)
    assert costs(alone) == costs(whole)
    for table in ("kv", "states"):
        assert alone[table] == whole[table]
    for key in ("parameters", "parameter_bytes", "architecture", "context_tokens"):
        assert alone["model"][key] == whole["model"][key]
    assert alone["memory"]["arena_bytes"] == whole["memory"]["arena_bytes"]


@pytest.mark.parametrize(
    ("family", "method"),
    [("llama", "fp8-block"), ("deepseek_v3", "fp8-block"), ("gpt_oss", "mxfp4")],
)
def test_quantised_types_follow_from_the_config(family: str, method: str, tmp_path: Path) -> None:
    stored, _ = quantised_models.save(family, method, tmp_path)
    config = json.loads((stored / "config.json").read_text())
    (tmp_path / "alone.json").write_text(json.dumps(config | {"dtype": "float32"}))
    alone, whole = inferc.plan(tmp_path / "alone.json"), inferc.plan(stored)
    assert {w["dtype"] for w in alone["weights"]} >= {{"fp8-block": "f8_g128"}.get(method, method)}
    types = [
        Counter((w["layout"], w["dtype"], tuple(w["shape"])) for w in report["weights"])
        for report in (alone, whole)
    ]
    assert types[0] == types[1]
    assert costs(alone) == costs(whole)


def test_other_quantisations_are_not_guessed(workshop: Workshop, tmp_path: Path) -> None:
    config = json.loads((workshop.source("llama") / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CompileError, match=r"quantised by gptq.*cannot be told from the config"):
        inferc.plan(tmp_path)
    assert inferc.plan(tmp_path, dtype="bf16")["model"]["parameter_bytes"] > 0


def test_types_are_those_of_the_config(workshop: Workshop, tmp_path: Path) -> None:
    config = json.loads((workshop.source("llama") / "config.json").read_text())
    config |= {"dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    declared = inferc.plan(tmp_path)
    assert {w["dtype"] for w in declared["weights"] if w["layout"] == "n16"} == {"bf16"}
    wide = inferc.plan(tmp_path, dtype="f32")
    assert wide["model"]["parameter_bytes"] == 2 * declared["model"]["parameter_bytes"]
    (tmp_path / "config.json").write_text(json.dumps(config | {"dtype": "int4"}))
    with pytest.raises(CompileError, match="says that weights are int4; known: float32"):
        inferc.plan(tmp_path)


def test_a_block_format_is_that_of_linear_layers(workshop: Workshop, tmp_path: Path) -> None:
    config = json.loads((workshop.source("qwen3_moe") / "config.json").read_text())
    source = tmp_path / "config.json"
    source.write_text(json.dumps(config | {"moe_intermediate_size": 64}))
    planned = inferc.plan(source, dtype="q8_0")
    types = {w["layout"]: w["dtype"] for w in planned["weights"]}
    assert types["experts"] == types["experts_pair"] == "q8_0"
    of_matrices = [w["dtype"] for w in planned["weights"] if w["layout"] == "n16"]
    assert {"q8_0", "bf16"} == set(of_matrices)  # the output embedding is not quantised
    with pytest.raises(CompileError, match=r"'q9_9' cannot be planned; known: f32.*q4_k"):
        inferc.plan(source, dtype="q9_9")
    with pytest.raises(CompileError, match=r"cannot be q4_k"):  # 256 columns do not fit
        inferc.plan(source, dtype="q4_k")


def test_types_of_stored_weights_are_theirs(workshop: Workshop) -> None:
    with pytest.raises(CompileError, match=r"has weights.*path of its config\.json"):
        inferc.plan(workshop.source("llama"), dtype="bf16")


def test_a_config_is_not_compiled(workshop: Workshop, tmp_path: Path) -> None:
    config = (workshop.source("llama") / "config.json").read_text()
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(CompileError, match="holds no weights"):
        inferc.compile(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["llama", "gpt_oss", "mamba"])
def test_scratch_is_what_the_library_takes(workshop: Workshop, name: str) -> None:
    artifact = workshop.artifact(name)
    report = report_file.read(artifact)
    library = ctypes.CDLL(str(artifact / "cpu" / "step.so"))
    library.inferc_scratch_bytes.restype = ctypes.c_uint64
    found = {n: library.inferc_scratch_bytes(int(n)) for n in report["memory"]["scratch_bytes"]}
    assert found == report["memory"]["scratch_bytes"]
    states = json.loads((artifact / "manifest.json").read_text())["states"]
    assert report["states"] == states and bool(states) == (name == "mamba")


def test_command(workshop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    config = workshop.source("mamba") / "config.json"
    limit = ["--context-tokens", "512", "-q"]
    assert main(["plan", str(config), "--machine", "h200", "--batch", "4", *limit]) == 0
    text = capsys.readouterr().out
    assert "decode: 4 rows, 4 sequences" in text and "a bound" in text
    assert "recurrent state of a sequence" in text
    assert "on h200, with 141 GB of memory" in text and " fits" in text
    assert main(["plan", str(config), "--json", *limit]) == 0
    assert json.loads(capsys.readouterr().out)["model"]["architecture"] == "MambaForCausalLM"
    assert main(["plan", str(config.with_name("no.json"))]) == 2
    assert "does not exist" in capsys.readouterr().err


LLAMA_8B = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 4, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "dtype": "bfloat16",
    "max_position_embeddings": 8192,
}  # fmt: skip


def test_decode_on_a_gpu_moves_little_more_than_it_must(tmp_path: Path) -> None:
    """Shapes of Llama 3.1 8B with four of its layers, at a context of 4096 tokens."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    report = inferc.plan(tmp_path / "config.json", target="cuda:sm_90a")
    assert report["kv"]["dtype"] == "bf16"
    for sequences, most in ((1, 1.02), (64, 1.05)):
        result = phase(report, "decode", Workload.decode(sequences, 4096), MACHINES["h200"])
        assert 1.0 <= result.traffic_ratio <= most, sequences
