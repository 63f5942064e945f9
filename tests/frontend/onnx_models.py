"""Tiny transformers models exported by torch.onnx (dynamo), kept between sessions in `.cache/onnx`.

`exported(name, attention, opset, inputs)` gives the folder of the model, `reference(path, ids)` the
logits that ONNX Runtime computes.
"""

from __future__ import annotations

import contextlib
import io
import logging
import shutil
import warnings
from pathlib import Path

import numpy as np

from tests import tiny

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "onnx"
INPUTS = {
    "positions": ("input_ids", "position_ids"),
    "ids": ("input_ids",),
    "mask": ("input_ids", "attention_mask"),
    "all": ("input_ids", "attention_mask", "position_ids"),
}


def exported(name: str, attention: str, opset: int, inputs: str = "positions") -> Path:
    """`model.onnx` of a case of `tiny`, with its weights beside it."""
    folder = CACHE / f"{name}-{attention}-{opset}-{inputs}"
    if not (folder / "model.onnx").is_file():
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _export(name, attention, opset, INPUTS[inputs], partial / "model.onnx")
        partial.rename(folder)
    return folder / "model.onnx"


def _export(name: str, attention: str, opset: int, inputs: tuple[str, ...], path: Path) -> None:
    import torch

    class Plain(torch.nn.Module):
        """Named inputs in, logits out."""

        def __init__(self, model: torch.nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, *given: torch.Tensor) -> torch.Tensor:
            return self.model(**dict(zip(inputs, given, strict=True)), use_cache=False).logits

    model = tiny.model(name)
    model.set_attn_implementation(attention)
    example = torch.zeros((2, 8), dtype=torch.long)
    values = {"input_ids": example, "attention_mask": example + 1,
              "position_ids": torch.arange(8)[None].expand(2, 8).contiguous()}  # fmt: skip
    batch, length = torch.export.Dim("batch", max=64), torch.export.Dim("length", max=tiny.CONTEXT)
    axes = {0: batch, 1: length}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Plain(model), tuple(values[i] for i in inputs), path, dynamo=True,
            input_names=list(inputs), output_names=["logits"], opset_version=opset,
            dynamic_shapes=(tuple(axes for _ in inputs),), external_data=True, verbose=False,
        )  # fmt: skip


def reference(path: Path, ids: np.ndarray) -> np.ndarray:
    """Logits `[B, S, V]` by ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    positions = np.broadcast_to(np.arange(ids.shape[1]), ids.shape).astype(np.int64)
    known = {"input_ids": ids, "position_ids": positions, "attention_mask": np.ones_like(ids)}
    return session.run(None, {i.name: known[i.name] for i in session.get_inputs()})[0]
