"""Runs small ONNX graphs through the translator and the reference interpreter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from inferc.frontend.mapped_file import MappedFile
from inferc.frontend.onnx_graph import Translated, translate
from inferc.frontend.onnx_proto import OnnxFile
from inferc.frontend.onnx_values import Item
from inferc.frontend.onnx_weights import dtype_of
from inferc.ir.core import Func
from inferc.ir.interp import run
from inferc.ir.types import TensorType

MICROSOFT = "com.microsoft"
HERE = MappedFile(Path(__file__))


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, np.ndarray],
    outputs: list[str],
    weights: dict[str, np.ndarray] | None = None,
    opset: int = 23,
) -> onnx.ModelProto:
    """A model with fixed shapes."""
    graph = helper.make_graph(
        nodes,
        "case",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in inputs.items()
        ],
        [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def translated(
    model: onnx.ModelProto,
    known: dict[str, Item] | None = None,
    tokens: tuple[int, int] = (1, 1),
) -> Translated:
    """The graph as a function; `known` are inputs that stand for something else."""
    opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    func = Func("forward")
    items: dict[str, Item] = {}
    for info in model.graph.input:
        kind = info.type.tensor_type
        dtype = dtype_of(kind.elem_type, info.name)
        dtype = "f32" if dtype.startswith(("f", "bf")) else dtype
        shape = tuple(d.dim_value for d in kind.shape.dim)
        items[info.name] = func.add_arg(info.name, TensorType(shape, dtype))
    func.add_arg("positions", TensorType(tokens, "i64"))
    file = OnnxFile(Path("case.onnx"), HERE, model, {}, opset)
    outputs = [o.name for o in model.graph.output]
    return translate(file, func, items | (known or {}), outputs)


def interpreted(
    model: onnx.ModelProto, inputs: list[np.ndarray], known: dict[str, Item] | None = None
) -> list[np.ndarray]:
    """Results of the graph by our cards."""
    found = translated(model, known)
    positions = np.zeros((1, 1), np.int64)

    def param(name: str, _: Any) -> np.ndarray:
        return found.tensors[name].read_float32()

    return run(found.func, [*inputs, positions], param)


def by_runtime(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Results by ONNX Runtime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, inputs)
