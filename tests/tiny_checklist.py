"""Tiny models for `tests.checklist`: configurations as files spell them, each once gone wrong.

They are compared on the interpreter; those of `COMPILED_CASES` are compiled.
"""

from __future__ import annotations

from typing import Any

_SLIDING = {"head_dim": 16, "sliding_window": 8}
_SHORT, _LONG = [1.0 + 0.05 * i for i in range(6)], [1.5 + 0.5 * i for i in range(6)]
_PARTIAL_LONG = {
    "partial_rotary_factor": 0.75,  # 12 of 16 dims, so six factors
    "rope_theta": 10000.0,
    "rope_scaling": {"type": "longrope", "short_factor": _SHORT, "long_factor": _LONG},
    "original_max_position_embeddings": 24,
}
_PER_LAYER = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 50000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
}

# name -> model type, fields
CHECK_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "type instead of rope_type": (
        "llama", {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 4.0}},
    ),
    "both spellings, equal": (
        "llama",
        {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 4.0},
         "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}},
    ),
    "rope of each layer type": (
        "gemma3_text",
        _SLIDING | {"num_hidden_layers": 2, "rope_parameters": _PER_LAYER,
                    "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "partial rotary with longrope": ("phi3", _PARTIAL_LONG),
    "rotary_pct": ("gpt_neox", {"rotary_pct": 0.5, "num_key_value_heads": None}),
    "rotary_dim": (
        "gptj",
        {"rotary_dim": 8, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512}
        | dict.fromkeys(("hidden_size", "intermediate_size", "num_hidden_layers",
                         "num_attention_heads", "num_key_value_heads")),
    ),
    "use_sliding_window = false": (
        "qwen2", {"use_sliding_window": False, "sliding_window": 8, "max_window_layers": 1},
    ),
    "sliding_window_pattern": (
        "gemma3_text", _SLIDING | {"num_hidden_layers": 4, "sliding_window_pattern": 2},
    ),
    "layer_types": (
        "qwen3",
        _SLIDING | {"use_sliding_window": True,
                    "layer_types": ["full_attention", "sliding_attention"]},
    ),
    "window on every layer": ("mistral", {"sliding_window": 8}),
    "biases of q, k and v only": ("qwen2", {}),
    "attention_bias and mlp_bias": ("llama", {"attention_bias": True, "mlp_bias": True}),
}  # fmt: skip

HEAD_SIZES = (80, 96, 100, 112, 128, 192, 512)  # SmolLM2 has 64, Gemma 3 256
VOCABULARIES = (32001, 49159, 151552)
_ONE_LAYER = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
COMPILED_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"head_dim {n}": ("llama", _ONE_LAYER | {"head_dim": n}) for n in HEAD_SIZES},
    **{
        f"vocab_size {n}": ("llama", _ONE_LAYER | {"vocab_size": n, "hidden_size": 32})
        for n in VOCABULARIES
    },
}
