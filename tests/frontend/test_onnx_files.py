"""Reading ONNX files: weights stay on disk; what is damaged, too new or unknown is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from inferc.errors import CompileError
from inferc.frontend.onnx_proto import SMALL_BYTES, open_onnx
from tests.frontend.onnx_graphs import HIDDEN, forward, logits, relu, save
from tests.frontend.onnx_models import reference


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


def edited(path: Path, change: Callable[[onnx.ModelProto], None]) -> Path:
    model = onnx.load(save(path, relu()))
    change(model)
    onnx.save(model, path)
    return path


def test_a_newer_ir_version_is_refused(tmp_path: Path) -> None:
    path = edited(tmp_path / "model.onnx", lambda m: setattr(m, "ir_version", 99))
    with pytest.raises(CompileError, match=r"IR version 99; the installed onnx .* reads up to"):
        open_onnx(path)


@pytest.mark.parametrize(
    ("number", "name"),
    [(TensorProto.FLOAT8E4M3FN, "FLOAT8E4M3FN"), (TensorProto.INT4, "INT4"),
     (TensorProto.FLOAT4E2M1, "FLOAT4E2M1"), (TensorProto.STRING, "STRING"), (99, "number 99")],
)  # fmt: skip
def test_types_that_are_not_supported_are_named(number: int, name: str, tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        next(t for t in model.graph.initializer if t.name == "table").data_type = number

    with pytest.raises(CompileError, match=rf"Tensor table of .* is of type {name}, which is not"):
        forward(edited(tmp_path / "model.onnx", change))


def test_values_of_another_length_than_the_shape(tmp_path: Path) -> None:
    """Float32 bytes under the name of bfloat16 would be read as another table."""

    def change(model: onnx.ModelProto) -> None:
        next(t for t in model.graph.initializer if t.name == "table").data_type = 16

    path = edited(tmp_path / "model.onnx", change)
    with pytest.raises(CompileError, match=r"table has 49152 bytes.*bf16 \[96, 128\] needs 24576"):
        forward(path)


@pytest.mark.parametrize(("key", "value"), [("offset", "-4"), ("length", "many")])
def test_external_places_are_numbers(key: str, value: str, tmp_path: Path) -> None:
    path = save(tmp_path / "model.onnx", relu(), external=True)
    model = onnx.load(path, load_external_data=False)
    for entry in model.graph.initializer[0].external_data:
        entry.value = value if entry.key == key else entry.value
    onnx.save(model, path)
    with pytest.raises(CompileError, match=rf"lies at {key} '{value}'.*the model is damaged"):
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
