"""A report of a small made-up model: two equal layers, one with a window, and a head."""

from __future__ import annotations

from typing import Any

PREFIX = "model.layers"


def kernel(name: str, modules: list[str], flops: str, read: str, written: str) -> dict[str, Any]:
    return {
        "arithmetic": "int16" if name.startswith("linear") else "f32",
        "name": name, "kernel": "linear", "kind": "linear", "source": "cpu/x.cpp", "body": "b",
        "modules": modules, "flops": flops, "bytes_read": read, "bytes_written": written,
    }  # fmt: skip


def layer(i: int, rows: str, window: str = "") -> list[dict[str, Any]]:
    attention, out = f"{PREFIX}.{i}.self_attn", f"{PREFIX}.{i}"
    return [
        kernel("norm_1", [f"{PREFIX}.{i}.norm"], f"4*{rows}", f"64*{rows} + 64", f"64*{rows}"),
        kernel("attend_1", [attention], f"32*A{window}*{rows}", f"128*C{window}*R", f"64*{rows}"),
        kernel("linear_1", [f"{out}.o_proj", out], f"2048*{rows}", f"2*{rows} + 4096", f"8*{rows}"),
    ]


def phase(rows: str) -> dict[str, Any]:
    head = kernel("head_1", ["lm_head"], "9000*X_8_2*L", "90000*X_8_2", f"-1*L + 400*L + 5*{rows}")
    layers = [*layer(0, rows), *layer(1, rows), *layer(2, rows, "_16"), *layer(3, rows)]
    return {"kernels": [*layers, head], "must_move_bytes": f"100000 + 4*P*R + 128*H*R - 3*{rows}"}


def report() -> dict[str, Any]:
    return {
        "schema_version": 1,
        "tool_version": "0.1.0",
        "model": {
            "name": "tiny [x] </script><!--<script>", "architecture": "Tiny", "layers": 4,
            "hidden_size": 16, "vocab_size": 99, "parameters": 5000, "parameter_bytes": 20000,
        },
        "options": {"kv_dtype": "f32"},
        "target": {"name": "cpu:portable"},
        "symbols": {"T": [1, 64], "R": [1, 8], "L": [1, 8], "P": [1, 16]},
        "phases": {"decode": phase("R"), "prefill": phase("T")},
        "bodies": {"b": "func @body"},
        "passes": [
            {
                "name": "cse", "changed": True, "ops_before": 9, "ops_after": 8,
                "hits": {"equal": 1}, "bytes_saved": {"decode": 2048},
                "refused": [{"reason": "too large"}, {"reason": "too large"}],
            }
        ],
        "kv": {"page_tokens": 8, "dtype": "f32", "bytes_per_token": 512, "page_bytes": 4096},
        "states": [{"name": "state_0", "shape": [4, 8], "dtype": "f32", "nbytes": 128}],
        "memory": {
            "weights_bytes": 20000, "arena_bytes": 999_700,
            "scratch_bytes": {"1": 1000, "8": 8000},
        },
        "weights": [],
    }  # fmt: skip
