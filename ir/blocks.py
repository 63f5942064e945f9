"""Block-quantised weight formats: their sizes, and how a row of blocks becomes float32.

A row of K elements is stored as K / block_elements blocks; blocks never cross rows, so permuting,
slicing or concatenating rows is safe on the raw bytes. `dequantize` is the definition that packing,
kernels and the reference interpreter are tested against. The formats of GGUF are ggml's own
(`blocks_ggml`); those of quantised Hugging Face checkpoints are rearranged without rounding into
the formats of `blocks_checkpoint`.
"""

from collections.abc import Callable

import numpy as np

from inferc.ir.block_format import BlockFormat, Bytes, Floats
from inferc.ir.blocks_checkpoint import CHECKPOINT_FORMATS
from inferc.ir.blocks_ggml import GGML_FORMATS

_CHUNK_ELEMENTS = 1 << 20  # bounds the temporaries of one decode to a few MiB
_DECODERS: dict[str, Callable[[Bytes], Floats]] = {
    fmt.name: decode for fmt, decode in (GGML_FORMATS | CHECKPOINT_FORMATS).items()
}
FORMATS: dict[str, BlockFormat] = {f.name: f for f in (*GGML_FORMATS, *CHECKPOINT_FORMATS)}


def block_format(name: str) -> BlockFormat:
    """The format called `name`."""
    if name not in FORMATS:
        raise ValueError(f"unknown block format {name!r}; known: {', '.join(FORMATS)}")
    return FORMATS[name]


def dequantize(name: str, raw: Bytes) -> Floats:
    """Decode raw rows `u8[..., row_bytes]` to `f32[..., K]`."""
    fmt = block_format(name)
    if raw.dtype != np.uint8:
        raise ValueError(f"raw {name} rows must be uint8, not {raw.dtype}")
    elements = fmt.row_elements(raw.shape[-1])
    blocks = np.ascontiguousarray(raw).reshape(-1, fmt.block_bytes)
    out = np.empty((len(blocks), fmt.block_elements), np.float32)
    decode, step = _DECODERS[name], _CHUNK_ELEMENTS // fmt.block_elements
    for start in range(0, len(blocks), step):
        out[start : start + step] = decode(blocks[start : start + step])
    return out.reshape(*raw.shape[:-1], elements)
