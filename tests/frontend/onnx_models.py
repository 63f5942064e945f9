"""Tiny transformers models exported by torch.onnx, kept between sessions in `.cache/onnx`.

`exported(name, attention, opset, inputs)` gives the folder of the model, `reference(path, ids)` the
logits that ONNX Runtime computes.
"""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from tests import tiny

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "onnx"
INPUTS = {
    "positions": ("input_ids", "position_ids"),
    "ids": ("input_ids",),
    "mask": ("input_ids", "attention_mask"),
    "all": ("input_ids", "attention_mask", "position_ids"),
    "cache": ("input_ids", "attention_mask", "position_ids"),  # and keys and values of the past
}
_LAST_OPSET_OF_TRACING = 17  # older ones are written by torch's former exporter only
_PAST_TOKENS = 5


def exported(name: str, attention: str, opset: int, inputs: str = "positions") -> Path:
    """`model.onnx` of a case of `tiny`, with its weights beside it."""
    folder = CACHE / f"{name}-{attention}-{opset}-{inputs}"
    if not (folder / "model.onnx").is_file():
        CACHE.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=CACHE, prefix="partial-"))
        export = _trace if opset <= _LAST_OPSET_OF_TRACING else _export
        export(name, attention, opset, inputs, partial / "model.onnx")
        with contextlib.suppress(OSError):  # another process was faster
            partial.rename(folder)
    return folder / "model.onnx"


def _export(name: str, attention: str, opset: int, form: str, path: Path) -> None:
    import torch

    inputs = INPUTS[form]

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


def _trace(name: str, attention: str, opset: int, form: str, path: Path) -> None:
    """By the tracing exporter, with names and axes as optimum gives them."""
    import torch

    model = tiny.model(name)
    model.set_attn_implementation(attention)
    config, past_tokens = model.config, _PAST_TOKENS if form == "cache" else 0
    layers, heads = config.num_hidden_layers, config.num_key_value_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    caches = [f"{i}.{kind}" for i in range(layers) for kind in ("key", "value") if past_tokens]
    ids = torch.zeros((2, 8), dtype=torch.long)
    mask = torch.ones((2, 8 + past_tokens), dtype=torch.long)
    positions = (torch.arange(8)[None] + past_tokens).expand(2, 8).contiguous()
    past = [torch.randn(2, heads, past_tokens, size) for _ in caches]
    inputs = [*INPUTS[form], *(f"past_key_values.{n}" for n in caches)]
    outputs = ["logits", *(f"present.{n}" for n in caches)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _cached(model), (ids, mask, positions, *past), str(path), dynamo=False,
            opset_version=opset, input_names=inputs, output_names=outputs,
            dynamic_axes=_axes_of_caches(inputs, outputs),
        )  # fmt: skip


def _cached(model: Any) -> Any:
    """The model as a module that takes past keys and values, and returns the longer ones."""
    import torch
    from transformers import DynamicCache

    class Cached(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any, mask: Any, positions: Any, *past: Any) -> Any:
            given = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
            if not past:
                return self.model(**given, use_cache=False).logits
            cache = DynamicCache(list(zip(past[::2], past[1::2], strict=True)))
            out = self.model(**given, past_key_values=cache, use_cache=True)
            return out.logits, *(t for x in cache.layers for t in (x.keys, x.values))

    return Cached()


def _axes_of_caches(inputs: list[str], outputs: list[str]) -> dict[str, dict[int, str]]:
    axes = {n: {0: "batch_size", 2: "past_sequence_length"} for n in inputs[3:]}
    axes |= {n: {0: "batch_size", 2: "total_sequence_length"} for n in outputs[1:]}
    axes |= {n: {0: "batch_size", 1: "sequence_length"} for n in (*inputs[:3], "logits")}
    if inputs[3:]:
        axes["attention_mask"][1] = "total_sequence_length"
    return axes


def reference(path: Path, ids: np.ndarray) -> np.ndarray:
    """Logits `[B, S, V]` by ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    positions = np.broadcast_to(np.arange(ids.shape[1]), ids.shape).astype(np.int64)
    known = {"input_ids": ids, "position_ids": positions, "attention_mask": np.ones_like(ids)}
    return session.run(None, {i.name: known[i.name] for i in session.get_inputs()})[0]
