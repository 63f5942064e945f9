"""GGUF metadata to a transformers-style config, by the tables of `gguf_architectures`."""

import math

import numpy as np

from inferc.errors import CompileError
from inferc.frontend.gguf_architectures import (
    ARCHITECTURES,
    EXPERT_VARIANTS,
    WINDOWED_VARIANTS,
    Architecture,
    Window,
)
from inferc.frontend.gguf_file import GgufFile
from inferc.frontend.gguf_keys import Keys
from inferc.frontend.gguf_rope import rope_config

Config = dict[str, object]

_TOKEN_IDS = {
    "tokenizer.ggml.bos_token_id": "bos_token_id",
    "tokenizer.ggml.eos_token_id": "eos_token_id",
    "tokenizer.ggml.padding_token_id": "pad_token_id",
}


def find_architecture(file: GgufFile) -> Architecture:
    """The table entry for this file."""
    name = file.architecture
    if name not in ARCHITECTURES:
        raise CompileError(
            f"{file.path} is of the GGUF architecture {name}, which is not supported yet; "
            f"supported: {', '.join(ARCHITECTURES)}. If the model is on Hugging Face, compile "
            "its safetensors directory instead."
        )
    experts = file.metadata.get(f"{name}.expert_count")
    if isinstance(experts, int) and experts > 0 and name in EXPERT_VARIANTS:
        return EXPERT_VARIANTS[name]
    window = file.metadata.get(f"{name}.attention.sliding_window")
    if isinstance(window, int) and window > 0 and name in WINDOWED_VARIANTS:
        return WINDOWED_VARIANTS[name]
    return ARCHITECTURES[name]


def build_config(file: GgufFile, architecture: Architecture, *, tied: bool) -> Config:
    """The config, from which transformers can build the same model.

    Raises CompileError for metadata that is missing, contradictory, or may change the maths and is
    not known.
    """
    keys = Keys(file)
    head_size = _head_size(file, keys)
    config: Config = {
        "model_type": architecture.model_type,
        "vocab_size": _vocab_size(file),
        "tie_word_embeddings": tied,
        **architecture.constants,
        **{name: keys.value(key) for key, name in architecture.keys.items()},
        **{
            name: _or_off(name, keys.value(key)) if key in keys else default
            for key, (name, default) in architecture.optional.items()
        },
        **{name: _any_in(file, tensors) for name, tensors in architecture.flags.items()},
        **_head_config(file, keys, architecture, head_size),
        **_scale_config(keys, architecture, head_size),
        **_window_config(file, keys, architecture.window),
        **_token_config(file),
    }
    if architecture.rope is not None:
        config |= rope_config(file, keys, architecture.rope, head_size)
    keys.refuse_unread()
    return config


def _or_off(name: str, value: object) -> object:
    """A soft-cap of 0 is none to llama.cpp; transformers would divide by it."""
    return None if name.endswith("softcapping") and value == 0 else value


def _any_in(file: GgufFile, tensors: tuple[str, ...]) -> bool:
    return any(tensor in file.tensors for tensor in tensors)


def _vocab_size(file: GgufFile) -> int:
    if "token_embd.weight" not in file.tensors:
        raise CompileError(f"{file.path} holds no token_embd.weight: it is no language model.")
    return file.tensors["token_embd.weight"].shape[0]


def _head_size(file: GgufFile, keys: Keys) -> int:
    hidden, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    if heads <= 0:
        raise CompileError(f"{file.path} has layers without attention heads: not supported.")
    size = keys.integer("attention.key_length", hidden // heads)
    value_size = keys.integer("attention.value_length", size)
    if value_size != size:
        raise CompileError(
            f"{file.path} has heads of {size} for keys and {value_size} for values, which "
            f"{file.architecture} models do not support."
        )
    return size


def _head_config(file: GgufFile, keys: Keys, architecture: Architecture, head_size: int) -> Config:
    heads = keys.integer("attention.head_count")
    key_heads = keys.integer("attention.head_count_kv", heads)
    if architecture.rope is not None:
        return {"num_key_value_heads": key_heads, "head_dim": head_size}
    if key_heads != heads or head_size * heads != keys.integer("embedding_length"):
        raise CompileError(
            f"{file.path}: {file.architecture} models have as many key as query heads, which "
            "together are as wide as the hidden state."
        )
    return {}


def _scale_config(keys: Keys, architecture: Architecture, head_size: int) -> Config:
    config: Config = {}
    if architecture.scale_key is not None:
        scale = keys.number(architecture.scale_key, 0.0) or 1 / math.sqrt(head_size)
        config["attention_multiplier"] = scale
    if architecture.wide_query_layers is not None:
        wide = keys.integer("block_count") == architecture.wide_query_layers
        width = keys.integer("embedding_length") // keys.integer("attention.head_count")
        config["query_pre_attn_scalar"] = width if wide else head_size
    return config


def _window_config(file: GgufFile, keys: Keys, window: Window | None) -> Config:
    if window is None:
        return {}
    tokens = keys.integer("attention.sliding_window", window.default_tokens or 0)
    if window.pattern is None:
        return {"sliding_window": tokens or None}
    layers = keys.integer("block_count")
    slides = _sliding_layers(file, keys, window.pattern, layers) if tokens else [False] * layers
    return {
        "sliding_window": tokens or None,
        "layer_types": ["sliding_attention" if s else "full_attention" for s in slides],
    }


def _sliding_layers(file: GgufFile, keys: Keys, pattern: int, layers: int) -> list[bool]:
    stored = keys.raw("attention.sliding_window_pattern")
    if isinstance(stored, np.ndarray):
        if len(stored) != layers:
            raise CompileError(
                f"{file.path} says of {len(stored)} layers whether they slide, but has {layers}."
            )
        return [bool(slides) for slides in stored]
    period = stored if isinstance(stored, int) else pattern
    return [period == 0 or (layer + 1) % period != 0 for layer in range(layers)]


def _token_config(file: GgufFile) -> Config:
    """Token ids; one outside the vocabulary would break the embedding's padding row."""
    vocab_size = _vocab_size(file)
    config: Config = {}
    for key, name in _TOKEN_IDS.items():
        token = file.metadata.get(key)
        config[name] = token if isinstance(token, int) and token < vocab_size else None
    return config
