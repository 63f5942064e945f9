"""Checkpoints with 4-bit weights that take no room: files that are holes, as AutoAWQ names them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.sparse_checkpoint import SHAPES, _tokenizer

GROUP = 128
QUANTISATION = {
    "quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm",
}  # fmt: skip
_BYTES = {"I32": 4, "F16": 2, "BF16": 2}
Tensor = tuple[str, str, tuple[int, ...]]


def awq_tensors(shape: str, config: dict[str, Any]) -> Iterator[Tensor]:
    """Name, type and shape: matrices of layers in three parts, all else in bf16."""
    for name, dims in SHAPES[shape][1](config):
        if len(dims) == 1 or not name.startswith("model.layers."):
            yield name, "BF16", dims
            continue
        rows, columns = dims
        stem = name.removesuffix("weight")
        yield f"{stem}qweight", "I32", (columns, rows // 8)
        yield f"{stem}qzeros", "I32", (columns // GROUP, rows // 8)
        yield f"{stem}scales", "F16", (columns // GROUP, rows)


def write_awq(folder: Path, shape: str, config: dict[str, Any]) -> None:
    """A model directory whose weights read as zeros."""
    folder.mkdir(parents=True)
    whole = config | {"quantization_config": QUANTISATION}
    (folder / "config.json").write_text(json.dumps(whole))
    _tokenizer(folder)
    header, at = {}, 0
    for name, dtype, dims in awq_tensors(shape, config):
        end = at + math.prod(dims) * _BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": dims, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + at)
