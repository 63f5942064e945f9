"""Translating ONNX graphs: sizes are folded, everything unknown is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from inferc.errors import CompileError
from inferc.frontend.importer import ImportOptions, import_model
from tests.frontend.onnx_graphs import CONTEXT, HIDDEN, IDS, forward, logits, node, relu, save
from tests.frontend.onnx_models import exported, reference


def test_unknown_operators_are_named(tmp_path: Path) -> None:
    nodes = [node("Frobnicate", ["embedded"], domain="com.example", name="/layers.3/act/Frob")]
    with pytest.raises(CompileError, match=r"com.example.Frobnicate \(node '/layers.3/act/Frob'\)"):
        forward(save(tmp_path / "model.onnx", nodes))


def test_a_known_operator_used_in_an_unknown_way_names_the_node(tmp_path: Path) -> None:
    nodes = [node("LayerNormalization", ["embedded", "w"], axis=1)]
    path = save(tmp_path / "model.onnx", nodes, {"w": np.ones((1, HIDDEN), np.float32)})
    with pytest.raises(
        CompileError, match=r"LayerNormalization \(node '/layers.3/Layer.*last axis"
    ):
        forward(path)


def test_sizes_are_folded(tmp_path: Path) -> None:
    """Shapes computed in the graph leave nothing behind but a reshape."""
    nodes = [
        node("Shape", ["input_ids"], "shape"),
        node("Gather", ["shape", "zero"], "batch", axis=0),
        node("Gather", ["shape", "one"], "length", axis=0),
        node("Mul", ["batch", "length"], "rows"),
        node("Unsqueeze", ["rows", "axis"], "rows1"),
        node("Concat", ["rows1", "hidden"], "flat", axis=0),
        node("Reshape", ["embedded", "flat"], "rows_of"),
        node("Relu", ["rows_of"], "active"),
        node("Concat", ["shape", "minus"], "back", axis=0),
        node("Reshape", ["active", "back"]),
    ]
    numbers = {"zero": 0, "one": 1, "axis": [0], "hidden": [HIDDEN], "minus": [-1]}
    weights = {k: np.array(v, np.int64) for k, v in numbers.items()}
    path = save(tmp_path / "model.onnx", nodes, weights)
    func, _ = forward(path)
    names = [op.name for op in func.ops]
    assert set(names) == {
        "param", "core.embedding", "core.reshape", "core.relu", "core.transpose", "core.linear",
    }  # fmt: skip
    ids = np.array([[1, 2, 3]])
    np.testing.assert_allclose(logits(path, ids), reference(path, ids), rtol=1e-5, atol=1e-5)


def test_sizes_may_be_read_where_they_do_not_matter(tmp_path: Path) -> None:
    """A length in a sum that only looks up a mask of ones; as data it is refused."""
    mask = helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "length"])
    nodes = [
        node("Shape", ["input_ids"], "shape"),
        node("Gather", ["shape", "one"], "size", axis=0),
        node("Add", ["input_ids", "size"], "places"),
        node("Reshape", ["attention_mask", "all"], "flat"),
        node("Gather", ["flat", "places"], "ones", axis=0),
        node("Cast", ["ones"], "floats", to=TensorProto.FLOAT),
        node("Unsqueeze", ["floats", "last"], "column"),
        node("Mul", ["embedded", "column"]),
    ]
    weights = {"one": np.array(1), "all": np.array([-1]), "last": np.array([2])}
    path = save(tmp_path / "model.onnx", nodes, weights, inputs=[IDS, mask])
    assert "core.iota" not in {op.name for op in forward(path)[0].ops}
    nodes[4:6] = [node("Cast", ["places"], "floats", to=TensorProto.FLOAT)]
    path = save(tmp_path / "model.onnx", nodes, weights, inputs=[IDS, mask])
    with pytest.raises(CompileError, match=r"\(S\) are used as data"):
        forward(path)


def test_a_size_that_cannot_be_known_is_refused(tmp_path: Path) -> None:
    nodes = [
        node("Cast", ["input_ids"], "as_float", to=TensorProto.FLOAT),
        node("ReduceMax", ["as_float"], "largest", keepdims=0),
        node("Cast", ["largest"], "count", to=TensorProto.INT64),
        node("Range", ["zero", "count", "one"], "counted"),
        node("Relu", ["embedded"]),
        node("Cast", ["counted"], "floats", to=TensorProto.FLOAT),
        node("ReduceSum", ["floats"], "sum", keepdims=0),
    ]
    nodes[4] = node("Relu", ["embedded"], "active")
    nodes.append(node("Add", ["active", "sum"]))
    weights = {"zero": np.array(0, np.int64), "one": np.array(1, np.int64)}
    with pytest.raises(CompileError, match=r"Range \(node .*its bound is computed from data"):
        forward(save(tmp_path / "model.onnx", nodes, weights))


def test_fixed_axes_are_refused(tmp_path: Path) -> None:
    fixed = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", 16])
    path = save(tmp_path / "model.onnx", relu(), inputs=[fixed])
    with pytest.raises(CompileError, match="sequence axis of input_ids is fixed to 16"):
        forward(path)


def test_unknown_inputs_are_named(tmp_path: Path) -> None:
    extra = helper.make_tensor_value_info("token_type_ids", TensorProto.INT64, ["batch", "length"])
    nodes = [node("Add", ["embedded", "types"])]
    nodes.insert(0, node("Gather", ["table", "token_type_ids"], "types"))
    path = save(tmp_path / "model.onnx", nodes, inputs=[IDS, extra])
    with pytest.raises(CompileError, match="takes the input 'token_type_ids'"):
        forward(path)


def test_logits_of_the_last_token_only_are_refused(tmp_path: Path) -> None:
    nodes = [node("Gather", ["embedded", "last"], "y", axis=1)]
    path = save(tmp_path / "model.onnx", nodes, {"last": np.array([-1], np.int64)})
    with pytest.raises(CompileError, match="expected logits of every token"):
        forward(path)


def test_a_branch_on_data_is_refused(tmp_path: Path) -> None:
    out = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    branch = helper.make_graph([helper.make_node("Relu", ["embedded"], ["z"])], "b", [], [out])
    nodes = [
        node("Cast", ["input_ids"], "as_float", to=TensorProto.FLOAT),
        node("ReduceMax", ["as_float"], "largest", keepdims=0),
        node("Cast", ["largest"], "condition", to=TensorProto.BOOL),
        node("If", ["condition"], then_branch=branch, else_branch=branch),
    ]
    with pytest.raises(CompileError, match=r"If \(node '/layers.3/If'\).*not a known number"):
        forward(save(tmp_path / "model.onnx", nodes))


def test_merged_cache_branches_are_taken_out(tmp_path: Path) -> None:
    out = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    plain = helper.make_graph([helper.make_node("Relu", ["embedded"], ["z"])], "a", [], [out])
    cached = helper.make_graph([helper.make_node("Neg", ["embedded"], ["z"])], "b", [], [out])
    flag = helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1])
    nodes = [node("If", ["use_cache_branch"], then_branch=cached, else_branch=plain)]
    path = save(tmp_path / "model.onnx", nodes, inputs=[IDS, flag])
    func, _ = forward(path)
    assert "core.relu" in {op.name for op in func.ops}
    assert "core.neg" not in {op.name for op in func.ops}


def test_locations_name_the_modules() -> None:
    func, _ = forward(exported("llama", "sdpa", 23))
    paths = {root.path for op in func.ops for root in op.loc.roots()}
    classes = {root.cls for op in func.ops for root in op.loc.roots()}
    assert any("layers.1.self_attn" in p for p in paths)
    assert "LlamaMLP" in classes


def test_locations_of_other_exporters_come_from_node_names(tmp_path: Path) -> None:
    func, _ = forward(save(tmp_path / "model.onnx", relu()))
    op = next(op for op in func.ops if op.name == "core.relu")
    assert op.loc.roots()[0].path == "layers.3"


def test_context_must_be_known(tmp_path: Path) -> None:
    path = save(tmp_path / "model.onnx", relu())
    with pytest.raises(CompileError, match="how long a sequence"):
        import_model(path)
    assert import_model(path, ImportOptions(context_tokens=64)).facts.context_tokens == 64


def test_context_of_learned_positions() -> None:
    path = exported("gpt2", "sdpa", 18)
    assert import_model(path).facts.context_tokens == CONTEXT
    with pytest.raises(CompileError, match="made for at most 512"):
        import_model(path, ImportOptions(context_tokens=1024))
