"""Large models in little memory: the benchmark of full sizes, scaled down, with real limits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench" / "full_size.py"
CONFIGS = ROOT / "tests" / "data" / "configs"
sys.path.insert(0, str(BENCH.parent))

from sparse_checkpoint import write_checkpoint  # noqa: E402

MIB = 1 << 20


def figures(task: str, *arguments: object) -> dict[str, Any]:
    """Result and memory of a task in a process of its own."""
    command = [sys.executable, str(BENCH), "child", task, *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def shortened(name: str, layers: int) -> dict[str, Any]:
    """A published config with fewer layers, unquantised."""
    config: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    config.pop("quantization_config", None)
    config["num_hidden_layers"] = layers
    return config


@pytest.mark.parametrize(
    ("name", "weights_bytes", "kv_bytes"),
    [
        # per layer: q and o, k and v, three of the MLP, two norms; then embedding, head, last norm
        (
            "llama-3.1-70b",
            16 * 2 * (2 * 8192**2 + 2 * 1024 * 8192 + 3 * 8192 * 28672 + 2 * 8192)
            + 2 * (2 * 128256 * 8192 + 8192),
            16 * 2 * 8 * 128 * 2,
        ),
        ("qwen3-235b-a22b", None, 16 * 2 * 4 * 128 * 2),
    ],
)
def test_config_of_full_width(
    tmp_path: Path, name: str, weights_bytes: int | None, kv_bytes: int
) -> None:
    file = tmp_path / f"{name}.json"
    file.write_text(json.dumps(shortened(name, 16)))
    found = figures("plan", file)
    if weights_bytes is not None:
        assert 2 * found["parameters"] == weights_bytes
    assert found["kv_bytes_per_token"] == kv_bytes
    assert 1 <= found["decode_1"]["traffic_ratio"] < 1.01
    assert found["peak_mib"] < 256 and found["peak_of_children_mib"] < 1024


def test_tables_larger_than_the_limit_are_packed(tmp_path: Path) -> None:
    """Embedding and head have 525 MB each, of 1.2 GB in all."""
    config = shortened("llama-3.1-70b", 1) | {
        "hidden_size": 2048, "intermediate_size": 4096, "num_attention_heads": 16,
        "num_key_value_heads": 4,
    }  # fmt: skip
    stored = write_checkpoint(tmp_path / "model", "llama", config)
    found = figures("pack", tmp_path / "model", tmp_path / "artifact")
    assert found["parameter_bytes"] == stored > 1.1e9
    assert found["artifact_bytes"] > stored
    assert found["peak_mib"] < 450


def test_stacked_experts_are_packed_one_by_one(tmp_path: Path) -> None:
    """One tensor of 537 MB, turned and interleaved on the way."""
    config = shortened("gpt-oss-120b", 1) | {
        "hidden_size": 1024, "intermediate_size": 1024, "vocab_size": 512, "layer_types": None,
        "num_attention_heads": 8, "num_key_value_heads": 4, "pad_token_id": None,
    }  # fmt: skip
    stored = write_checkpoint(tmp_path / "model", "stacked-experts", config)
    found = figures("pack", tmp_path / "model", tmp_path / "artifact")
    assert found["parameter_bytes"] == stored > 0.8e9
    assert found["peak_mib"] < 450
