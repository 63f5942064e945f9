"""Reading ONNX files: weights stay on disk, sizes are folded, everything unknown is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from inferc.errors import CompileError
from inferc.frontend.importer import ImportOptions, import_model
from inferc.frontend.onnx_model import decoder
from inferc.frontend.onnx_proto import SMALL_BYTES, open_onnx
from inferc.ir.core import Func
from inferc.ir.interp import run
from tests.frontend.onnx_models import exported, reference

VOCAB, HIDDEN, CONTEXT = 96, 128, 512
IDS = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])
LOGITS = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "length", VOCAB])


def save(
    path: Path, nodes: list[Any], weights: dict[str, np.ndarray] | None = None, *,
    inputs: list[Any] | None = None, opset: int = 20, external: bool = False,
) -> Path:  # fmt: skip
    """A graph with an embedding `embedded`, the given nodes, and a head of what they call `y`."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((VOCAB, HIDDEN)).astype(np.float32)
    values = {"table": table, "head": np.ascontiguousarray(table.T), **(weights or {})}
    tensors = [numpy_helper.from_array(a, n) for n, a in values.items()]
    body = [
        helper.make_node("Gather", ["table", "input_ids"], ["embedded"], name="/embed/Gather"),
        *nodes,
        helper.make_node("MatMul", ["y", "head"], ["logits"], name="/head/MatMul"),
    ]
    graph = helper.make_graph(body, "test", inputs or [IDS], [LOGITS], tensors)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.example", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=9)
    onnx.save(
        model, path, save_as_external_data=external, location="weights.bin", size_threshold=1024
    )
    return path


def forward(path: Path) -> tuple[Func, dict[str, Any]]:
    made = decoder(open_onnx(path)).translated
    return made.func, made.tensors


def logits(path: Path, ids: np.ndarray) -> np.ndarray:
    func, tensors = forward(path)
    positions = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
    return run(func, [ids, positions], lambda name, _: tensors[name].read_float32())[0]


def node(kind: str, inputs: list[str], output: str = "y", **attrs: Any) -> onnx.NodeProto:
    name = attrs.pop("name", f"/layers.3/{kind}" if output == "y" else f"/layers.3/{output}")
    return helper.make_node(kind, inputs, [output], name=name, **attrs)


def relu() -> list[Any]:
    return [node("Relu", ["embedded"])]


# -- files
@pytest.mark.parametrize("external", [False, True])
def test_weights_are_mapped_not_loaded(tmp_path: Path, external: bool) -> None:
    path = save(tmp_path / "model.onnx", relu(), external=external)
    file = open_onnx(path)
    assert set(file.places) == {"table", "head"}
    assert len(file.model.SerializeToString()) < SMALL_BYTES
    assert {p.file.path.name for p in file.places.values()} == {
        "weights.bin" if external else "model.onnx"
    }
    ids = np.array([[1, 2, 3], [95, 0, 7]])
    np.testing.assert_allclose(logits(path, ids), reference(path, ids), rtol=1e-5, atol=1e-5)


def test_a_file_larger_than_protobuf_can_parse(tmp_path: Path) -> None:
    """Three gigabytes, sparse on disk: opening reads the graph only."""
    rows = (3 << 30) // (4 * HIDDEN)
    path = save(tmp_path / "model.onnx", relu(), external=True)
    model = onnx.load(path, load_external_data=False)
    table = next(t for t in model.graph.initializer if t.name == "table")
    table.dims[0] = rows
    entries = {e.key: e for e in table.external_data}
    entries["offset"].value, entries["length"].value = str(1 << 20), str(3 << 30)
    onnx.save(model, path)
    with (tmp_path / "weights.bin").open("r+b") as file:
        file.truncate((1 << 20) + (3 << 30))
    _, tensors = forward(path)
    assert tensors["table"].nbytes == 3 << 30
    assert tensors["table"].shape == (rows, HIDDEN)


@pytest.mark.parametrize("opset", [16, 25])
def test_other_opsets_are_refused(tmp_path: Path, opset: int) -> None:
    path = save(tmp_path / "model.onnx", relu(), opset=opset)
    with pytest.raises(CompileError, match=f"opset {opset}; opsets 17 to 24"):
        open_onnx(path)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "model.onnx", relu())
    whole = path.read_bytes()
    for cut in (10, len(whole) // 2, len(whole) - 3):
        path.write_bytes(whole[:cut])
        with pytest.raises(CompileError, match="not an ONNX model"):
            open_onnx(path)
    path.write_bytes(b"# not a model\n" * 100)
    with pytest.raises(CompileError, match="not an ONNX model"):
        open_onnx(path)


def test_missing_and_truncated_external_data(tmp_path: Path) -> None:
    path = save(tmp_path / "model.onnx", relu(), external=True)
    data = (tmp_path / "weights.bin").read_bytes()
    (tmp_path / "weights.bin").write_bytes(data[:-100])
    with pytest.raises(CompileError, match=r"weights.bin is truncated: tensor head"):
        open_onnx(path)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(CompileError, match=r"lies in weights.bin, which is not beside"):
        open_onnx(path)


def test_external_data_outside_of_the_folder_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "model.onnx", relu(), external=True)
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../secret.bin"
    onnx.save(model, path)
    with pytest.raises(CompileError, match="outside of the model's folder"):
        open_onnx(path)


# -- graphs
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
