"""Small ONNX decoders of given nodes, and what the translator makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from inferc.frontend.onnx_model import decoder
from inferc.frontend.onnx_proto import open_onnx
from inferc.ir.core import Func
from inferc.ir.interp import run

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
