"""Choices of the compiler that must not change the result, beyond the arithmetic that they name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import inferc
from inferc.errors import CompileError
from inferc.ir.parse import parse_module
from inferc.metrics import distance
from inferc.options import for_model, resolve_options
from inferc.tolerance import tolerance
from tests.e2e.workshop import THREADS, Workshop, ids_of, reference_logits

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"kv_dtype": "f16"}),
    ("gemma2", {"kv_dtype": "bf16"}),
    ("llama", {"kv_dtype": "i8"}),
    ("gemma2", {"kv_dtype": "i8", "page_tokens": 48}),
    ("llama", {"page_tokens": 16, "step_tokens": 16}),
    ("gemma2", {"page_tokens": 64, "sequences": 1}),
    ("gemma2", {"target": "cpu:x86-64-v3"}),
    ("llama", {"target": "cpu:portable", "tvm": False}),
]


def test_kv_dtype_of_another_kind_of_target() -> None:
    assert resolve_options({"kv_dtype": "f8e4m3", "target": "cuda:sm_80"}).kv_dtype == "f8e4m3"
    message = "'f8e4m3' is not supported for cpu:portable: choose one of f32, bf16, f16, i8"
    with pytest.raises(CompileError, match=message):
        resolve_options({"kv_dtype": "f8e4m3", "target": "cpu:portable"})


@pytest.mark.parametrize(
    ("stored", "small", "chosen"), [("f32", "f32", "f32"), ("bf16", "f32", "bf16"),
                                    ("q4_1", "f16", "bf16"), ("f32", "bf16", "f32")],
)  # fmt: skip
def test_kv_dtype_of_the_matrices(stored: str, small: str, chosen: str) -> None:
    """Vectors do not count, and most of the matrices' numbers do."""
    module = parse_module(
        f"""func @forward(%x: f32[S, 64]) -> (f32[S, 64]) where S in 1..8 {{
  %v = param @vector : f32[100000]
  %a = param @large : {stored}[4096, 64]
  %b = param @small : {small}[64, 64]
  return %x
}}
"""
    )
    assert for_model(resolve_options({"target": "cpu:portable"}), module).kv_dtype == chosen
    for fixed in ({"target": "cpu:portable", "kv_dtype": "i8"}, {"target": "cuda:sm_80"}):
        options = resolve_options(fixed)
        assert for_model(options, module) == options


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_option(workshop: Workshop, name: str, options: dict[str, Any]) -> None:
    ids = ids_of(name)
    with inferc.load(workshop.artifact(name, **options), threads=THREADS) as engine:
        found, chunked = engine.logits(ids), engine.logits(ids, 7)
    assert np.array_equal(found.view(np.int32), chunked.view(np.int32))
    allowed = tolerance("f32", options.get("kv_dtype", "f32"))
    assert allowed.admits(distance(found, reference_logits(name, ids)))
