"""Exports of opset 17, with and without a cache, merged from both, or rewritten afterwards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, compose, helper

from inferc.frontend.onnx_model import decoder
from inferc.frontend.onnx_proto import open_onnx
from inferc.ir.interp import run
from inferc.reference_onnx import Model
from tests import tiny
from tests.frontend.captured import relative_error
from tests.frontend.onnx_models import exported
from tests.frontend.onnx_optimised import by_fusion, by_session, foreign_operators

LENGTH = 21
TRACED = [
    ("llama", "sdpa", "all"), ("llama", "eager", "cache"), ("qwen2", "sdpa", "cache"),
    ("gemma2", "eager", "all"), ("phi3", "sdpa", "all"), ("gemma3", "sdpa", "cache"),
    ("granite", "sdpa", "cache"),
]  # fmt: skip


def check(path: Path, name: str) -> None:
    """Our logits, those of ONNX Runtime and those of transformers are the same."""
    ids, positions = tiny.ids(name, 1, LENGTH), np.arange(LENGTH)[None]
    wanted = Model(path).logits(ids[0].tolist())
    assert relative_error(wanted, tiny.logits(name, ids)[0]) < 1e-5
    made = decoder(open_onnx(path)).translated
    found = run(made.func, [ids, positions], lambda n, _: made.tensors[n].read_float32())[0]
    assert relative_error(found[0], wanted) < 1e-5


@pytest.mark.parametrize(("name", "attention", "inputs"), TRACED)
def test_opset_17(name: str, attention: str, inputs: str) -> None:
    check(exported(name, attention, 17, inputs), name)


REWRITTEN = [
    ("llama", "sdpa", 17, "all"), ("qwen2", "sdpa", 17, "cache"), ("gemma2", "eager", 17, "all"),
]  # fmt: skip


@pytest.mark.parametrize("spec", REWRITTEN)
def test_optimised_by_onnx_runtime(spec: tuple[str, str, int, str], tmp_path: Path) -> None:
    path = by_session(exported(*spec), tmp_path / "model.onnx")
    assert "FusedMatMul" in foreign_operators(path)
    check(path, spec[0])


@pytest.mark.parametrize(
    ("spec", "operator"),
    [
        (("llama", "sdpa", 17, "all"), "SkipSimplifiedLayerNormalization"),
        (("gpt2", "sdpa", 18, "positions"), "SkipLayerNormalization"),
    ],
)
def test_fused_by_onnx_runtime(
    spec: tuple[str, str, int, str], operator: str, tmp_path: Path
) -> None:
    path = by_fusion(exported(*spec), tmp_path / "model.onnx")
    assert operator in foreign_operators(path)
    check(path, spec[0])


def test_merged_decoder(tmp_path: Path) -> None:
    """Both graphs under one `If`, as optimum merges them: of a sequence that begins, the plain."""
    plain, cached = (onnx.load(exported("llama", "sdpa", 17, i)) for i in ("all", "cache"))
    path = tmp_path / "model.onnx"
    onnx.save(merged(plain.graph, compose.add_prefix(cached, "with_past/").graph), path)
    check(path, "llama")


def merged(plain: onnx.GraphProto, cached: onnx.GraphProto) -> onnx.ModelProto:
    """`use_cache_branch` decides between the graphs; the names of the inputs are shared."""
    given = [i.name.removeprefix("with_past/") for i in cached.input]
    same = [helper.make_node("Identity", [name], [f"with_past/{name}"]) for name in given]
    branches = [
        helper.make_graph(nodes, name, [], [logits])
        for name, nodes, logits in (
            ("cached", [*same, *cached.node], cached.output[0]),
            ("plain", plain.node, plain.output[0]),
        )
    ]
    node = helper.make_node(
        "If", ["use_cache_branch"], ["logits"], name="optimum::if",
        then_branch=branches[0], else_branch=branches[1],
    )  # fmt: skip
    inputs = [*plain.input, *cached.input[len(plain.input) :]]
    for info in inputs:
        info.name = info.name.removeprefix("with_past/")
    flag = helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1])
    graph = helper.make_graph(
        [node], "merged", [*inputs, flag], [plain.output[0]],
        [*plain.initializer, *cached.initializer],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
