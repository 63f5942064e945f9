"""A GGUF file as a model to compile: config, weights, and how each parameter is made from them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from inferc.frontend.gguf_architectures import Architecture, Change
from inferc.frontend.gguf_config import Config, build_config, find_architecture
from inferc.frontend.gguf_file import GgufFile, is_gguf, read_gguf
from inferc.frontend.gguf_rope import inv_freq_divisors
from inferc.frontend.weight_transforms import (
    Binding,
    Rows,
    Stack,
    SubtractOne,
    Transform,
    Transpose,
    UnpermuteHeads,
)
from inferc.frontend.weights import WeightStore

__all__ = ["GgufModel", "is_gguf", "open_gguf"]

# Tensors that carry no weights: rope factors are in the config, the last two are dead buffers.
_NOT_WEIGHTS = (
    r"^rope_freqs\.weight$",
    r"^rope_factors_(long|short)\.weight$",
    r"^blk\.\d+\.attn_rot_embd\.weight$",
    r"^blk\.\d+\.attn\.(bias|masked_bias)$",
)
_SPLIT_QKV = ("attn_q", "attn_k", "attn_v")


@dataclass(frozen=True)
class GgufModel:
    """Everything that capture needs to compile a GGUF file."""

    file: GgufFile
    config: Config
    """As transformers spells it: `AutoConfig.for_model(**config)`."""
    store: WeightStore
    bindings: tuple[Binding, ...]
    known_unused: tuple[str, ...]
    """Regular expressions for stored tensors that are no parameters."""
    inv_freq_divisors: NDArray[np.float32] | None
    """Divide the rope's `inv_freq` by these (Llama 3's scaling, stored as a tensor)."""


def open_gguf(path: Path) -> GgufModel:
    """Read `path` and translate it; CompileError if anything in it is not understood."""
    file = read_gguf(path)
    architecture = find_architecture(file)
    store = WeightStore(path, file.tensors)
    tied = _is_tied(store)
    config = build_config(file, architecture, tied=tied)
    return GgufModel(
        file=file,
        config=config,
        store=store,
        bindings=tuple(_bindings(file, architecture, config)),
        known_unused=(*_NOT_WEIGHTS, r"^output\.weight$") if tied else _NOT_WEIGHTS,
        inv_freq_divisors=inv_freq_divisors(file, architecture.rope),
    )


def _is_tied(store: WeightStore) -> bool:
    """Whether the head is the embedding: absent, or (older converters) a copy of it."""
    if "output.weight" not in store:
        return True
    return "token_embd.weight" in store and store["output.weight"].same_bytes(
        store["token_embd.weight"]
    )


def _bindings(file: GgufFile, architecture: Architecture, config: Config) -> Iterator[Binding]:
    """A binding for each stored tensor whose name is known; `bind` reports the others."""
    for stored in file.tensors:
        base, _, suffix = stored.rpartition(".")
        layer = re.match(r"blk\.(\d+)\.", base)
        template = re.sub(r"^blk\.\d+\.", "blk.{i}.", base)
        number = layer[1] if layer else ""
        if template in architecture.names:
            parameter = f"{architecture.names[template].replace('{i}', number)}.{suffix}"
            yield Binding(
                parameter, (stored,), _transforms(architecture, f"{template}.{suffix}", config)
            )
        elif template == "blk.{i}.attn_qkv" and "blk.{i}.attn_q" in architecture.names:
            yield from _split_qkv(architecture, config, stored, number, suffix)
        for parameter, pieces in architecture.stacks.items():
            if f"{template}.{suffix}" == pieces[0]:
                sources = tuple(piece.replace("{i}", number) for piece in pieces)
                yield Binding(parameter.replace("{i}", number), sources, axis=int(len(pieces) > 1))


def _split_qkv(
    architecture: Architecture, config: Config, stored: str, number: str, suffix: str
) -> Iterator[Binding]:
    """Three parameters from a tensor into which llama.cpp's converter fused q, k and v."""
    size = _integer(config, "head_dim")
    query, key = (_integer(config, f"num_{kind}_heads") for kind in ("attention", "key_value"))
    start = 0
    for name, heads in zip(_SPLIT_QKV, (query, key, key), strict=True):
        template = f"blk.{{i}}.{name}"
        rows = Rows(start, start + heads * size)
        yield Binding(
            f"{architecture.names[template].replace('{i}', number)}.{suffix}",
            (stored,),
            (rows, *_transforms(architecture, f"{template}.{suffix}", config)),
        )
        start = rows.stop


def _transforms(architecture: Architecture, name: str, config: Config) -> tuple[Transform, ...]:
    match architecture.changes.get(name):
        case Change.QUERY_ROWS:
            return (UnpermuteHeads(_integer(config, "num_attention_heads")),)
        case Change.KEY_ROWS:
            return (UnpermuteHeads(_integer(config, "num_key_value_heads")),)
        case Change.PLUS_ONE:
            return (SubtractOne(),)
        case Change.TRANSPOSED:
            return (Transpose(),)
        case Change.SQUEEZED:
            return (Stack(1),)
        case None:
            return ()


def _integer(config: Config, name: str) -> int:
    value = config[name]
    assert isinstance(value, int)
    return value
