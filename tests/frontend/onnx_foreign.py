"""Graphs of a foreign exporter (`tests/data/onnx`), their external weights filled at random."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

DATA = Path(__file__).resolve().parents[1] / "data" / "onnx"
NAMES = sorted(p.stem for p in DATA.glob("*.onnx"))
_HEAD_SIZES = {"genai-gemma2": 16, "genai-qwen3": 32}


def filled(name: str, folder: Path) -> Path:
    """The model with weights, and what ONNX Runtime GenAI writes beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    model = onnx.load(DATA / f"{name}.onnx", load_external_data=False)
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    external = [t for t in model.graph.initializer if t.external_data]
    places = [{i.key: i.value for i in t.external_data} for t in external]
    size = max((int(p["offset"]) + int(p["length"]) for p in places), default=0)
    data = bytearray(size)
    for tensor, place in zip(external, places, strict=True):
        start = int(place["offset"])
        data[start : start + int(place["length"])] = _values(tensor, rng).tobytes()
    (folder / "model.onnx.data").write_bytes(bytes(data))
    path = folder / "model.onnx"
    onnx.save(model, path)
    decoder = {"head_size": _HEAD_SIZES.get(name, 16), "sliding_window": {"window_size": 8}}
    config = {"type": name.split("-")[1], "context_length": 512, "decoder": decoder}
    (folder / "genai_config.json").write_text(json.dumps({"model": config}))
    return path


def _values(tensor: onnx.TensorProto, rng: np.random.Generator) -> np.ndarray:
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    shape = tuple(tensor.dims)
    if dtype == np.uint8:
        return rng.integers(0, 256, shape, np.uint8)
    if tensor.name.endswith("_scales"):  # numbers that 16-bit floats hold
        return rng.uniform(0.005, 0.02, shape).astype(np.float16).astype(dtype)
    if "cache" in tensor.name:
        angle = np.arange(shape[0])[:, None] / 1e4 ** (np.arange(shape[1]) / shape[1])
        return (np.cos if "cos" in tensor.name else np.sin)(angle).astype(dtype)
    if "norm" in tensor.name:
        return rng.uniform(0.5, 1.5, shape).astype(dtype)
    return (0.1 * rng.standard_normal(shape)).astype(dtype)
