"""The tiny models that `gguf_models` writes as GGUF files: config, metadata keys, weight changes.

The keys are those that llama.cpp's `convert_hf_to_gguf.py` was seen to write for such models; the
weight changes are the converter's own formulas. None of it is taken from inferc's tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

LAYERS = 4
_SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": None,
}
_KEYS: dict[str, Any] = {
    "block_count": LAYERS,
    "context_length": 128,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
}
_RMS = {"attention.layer_norm_rms_epsilon": 1e-6}
_ROPE = {"rope.freq_base": 10000.0, "rope.dimension_count": 16, "vocab_size": 96}
_FACTORS = {"short": [1.0 + 0.1 * i for i in range(6)], "long": [1.0 + 0.7 * i for i in range(6)]}

Change = Callable[[str, np.ndarray], np.ndarray]


def _permuted(name: str, array: np.ndarray) -> np.ndarray:
    """`LlamaModel.permute` of llama.cpp's converter."""
    if not re.search(r"\.[qk]_proj\.", name):
        return array
    heads = 4 if ".q_proj." in name else 2
    split = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return split.swapaxes(1, 2).reshape(array.shape)


def _norm_plus_one(name: str, array: np.ndarray) -> np.ndarray:
    return array + np.float32(1) if name.endswith("norm.weight") else array


def _transposed(name: str, array: np.ndarray) -> np.ndarray:
    return array.T if re.search(r"\.c_(attn|proj|fc)\.weight$", name) else array


def _as_is(name: str, array: np.ndarray) -> np.ndarray:
    return array


@dataclass(frozen=True)
class Case:
    model_type: str
    architecture: str
    keys: dict[str, Any]
    config: dict[str, Any] = field(default_factory=dict)
    change: Change = _as_is
    fuse_qkv: bool = False
    extra: dict[str, list[float]] = field(default_factory=dict)

    @property
    def full_config(self) -> dict[str, Any]:
        if self.model_type == "gpt2":
            return self.config
        return _SIZES | self.config


def _rope(**parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": parameters}


def _llama3_divisors() -> list[float]:
    """`generate_extra_tensors` of llama.cpp's converter, for the llama3 case below."""
    frequencies = 1.0 / (500000.0 ** (np.arange(0, 16, 2, dtype=np.float32) / 16))
    divisors = []
    for wavelength in 2 * np.pi / frequencies:
        if wavelength < 64 / 4.0:
            divisors.append(1.0)
        elif wavelength > 64 / 1.0:
            divisors.append(8.0)
        else:
            smooth = (64 / wavelength - 1.0) / (4.0 - 1.0)
            divisors.append(1 / ((1 - smooth) / 8.0 + smooth))
    return divisors


_LLAMA_KEYS = _KEYS | _RMS | _ROPE | {"attention.key_length": 16, "attention.value_length": 16}
_GEMMA_KEYS = (
    _KEYS
    | _RMS
    | {"attention.key_length": 32, "attention.value_length": 32, "attention.sliding_window": 16}
)
_GEMMA_CONFIG = {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 16}
_BIASED = {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "head_dim": 24}
_BIASED_KEYS = {
    "attention.key_length": 24,
    "attention.value_length": 24,
    "rope.dimension_count": 24,
}
_MULTIPLIERS = {
    "embedding_multiplier": 12.0,
    "logits_scaling": 8.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.015625,
}
_MULTIPLIER_KEYS = {
    "attention.scale": 0.015625,
    "embedding_scale": 12.0,
    "residual_scale": 0.22,
    "logit_scale": 8.0,
}

_EXPERTS = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
_EXPERT_KEYS = {
    "expert_count": 3, "expert_used_count": 2, "expert_feed_forward_length": 48,
    "rope.freq_base": 10000.0,
}  # fmt: skip


def _squeezed(name: str, array: np.ndarray) -> np.ndarray:
    """The converter squeezes every tensor."""
    return array[0] if name.endswith("shared_expert_gate.weight") else array


CASES: dict[str, Case] = {
    "llama": Case("llama", "llama", _LLAMA_KEYS, change=_permuted),
    "llama, tied, biases": Case("llama", "llama", _LLAMA_KEYS | _BIASED_KEYS, _BIASED, _permuted),
    "llama, q k v fused": Case(
        "llama", "llama", _LLAMA_KEYS | _BIASED_KEYS, _BIASED, _permuted, fuse_qkv=True
    ),
    "llama, llama3 rope": Case(
        "llama",
        "llama",
        _LLAMA_KEYS | {"rope.freq_base": 500000.0},
        _rope(
            rope_type="llama3",
            rope_theta=500000.0,
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=64,
        ),
        _permuted,
        extra={"rope_freqs.weight": _llama3_divisors()},
    ),
    "llama, linear rope": Case(
        "llama",
        "llama",
        _LLAMA_KEYS | {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
        _rope(rope_type="linear", rope_theta=10000.0, factor=4.0),
        _permuted,
    ),
    "mistral": Case(
        "mistral",
        "llama",
        _LLAMA_KEYS | {"attention.sliding_window": 20},
        {"sliding_window": 20},
        _permuted,
    ),
    "qwen2": Case("qwen2", "qwen2", _KEYS | _RMS | {"rope.freq_base": 10000.0}),
    "qwen2, yarn rope": Case(
        "qwen2",
        "qwen2",
        _KEYS
        | _RMS
        | {
            "rope.freq_base": 1e6,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 32,
        },
        _rope(rope_type="yarn", rope_theta=1e6, factor=4.0, original_max_position_embeddings=32),
    ),
    "qwen3": Case(
        "qwen3",
        "qwen3",
        _KEYS
        | _RMS
        | {"rope.freq_base": 10000.0, "attention.key_length": 32, "attention.value_length": 32},
        {"head_dim": 32},
    ),
    "mixtral": Case(
        "mixtral",
        "llama",
        _LLAMA_KEYS | {"expert_count": 3, "expert_used_count": 2},
        {
            "num_local_experts": 3,
            "num_experts_per_tok": 2,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
        },
        _permuted,
    ),
    "qwen2moe": Case(
        "qwen2_moe",
        "qwen2moe",
        _KEYS | _RMS | _EXPERT_KEYS | {"expert_shared_feed_forward_length": 80},
        _EXPERTS | {"shared_expert_intermediate_size": 80},
        _squeezed,
    ),
    "qwen3moe": Case(
        "qwen3_moe",
        "qwen3moe",
        _KEYS | _RMS | _EXPERT_KEYS | {"attention.key_length": 32, "attention.value_length": 32},
        _EXPERTS | {"head_dim": 32, "norm_topk_prob": True},
    ),
    "smollm3": Case(
        "smollm3", "smollm3", _KEYS | _RMS | _ROPE | {"rope.freq_base": 2e6}, change=_permuted
    ),
    "gemma2": Case(
        "gemma2",
        "gemma2",
        _GEMMA_KEYS | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        _GEMMA_CONFIG,
        _norm_plus_one,
    ),
    "gemma3": Case(
        "gemma3_text",
        "gemma3",
        _GEMMA_KEYS | {"rope.freq_base": 1e6},
        _GEMMA_CONFIG,
        _norm_plus_one,
    ),
    "gpt2": Case(
        "gpt2",
        "gpt2",
        {
            "block_count": LAYERS,
            "context_length": 128,
            "embedding_length": 64,
            "feed_forward_length": 256,
            "attention.head_count": 4,
            "attention.layer_norm_epsilon": 1e-5,
        },
        {"vocab_size": 96, "n_embd": 64, "n_layer": LAYERS, "n_head": 4, "n_positions": 128},
        _transposed,
    ),
    "phi3": Case(
        "phi3",
        "phi3",
        _KEYS
        | {
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.scaling.original_context_length": 128,
            "rope.dimension_count": 16,
            "rope.freq_base": 10000.0,
            "attention.sliding_window": 20,
        },
        {"sliding_window": 20},
    ),
    "phi3, longrope": Case(
        "phi3",
        "phi3",
        _KEYS
        | {
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.scaling.attn_factor": 1.1832159757614136,
            "rope.scaling.original_context_length": 32,
            "rope.dimension_count": 12,
            "rope.freq_base": 10000.0,
            "attention.sliding_window": 0,
        },
        {"original_max_position_embeddings": 32}
        | _rope(
            rope_type="longrope",
            rope_theta=10000.0,
            partial_rotary_factor=0.75,
            short_factor=_FACTORS["short"],
            long_factor=_FACTORS["long"],
            original_max_position_embeddings=32,
        ),
        extra={f"rope_factors_{name}.weight": values for name, values in _FACTORS.items()},
    ),
    "granite": Case(
        "granite", "granite", _KEYS | _RMS | _ROPE | _MULTIPLIER_KEYS, _MULTIPLIERS, _permuted
    ),
    "olmo2": Case(
        "olmo2",
        "olmo2",
        _KEYS | {"attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 10000.0},
    ),
    "olmo3": Case(
        "olmo3",
        "olmo2",
        _KEYS
        | {
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.freq_base": 500000.0,
            "attention.sliding_window": 16,
            "attention.sliding_window_pattern": [True, True, True, False],
        },
        {"sliding_window": 16},
    ),
    "cohere2": Case(
        "cohere2",
        "cohere2",
        _KEYS
        | _ROPE
        | {
            "attention.layer_norm_epsilon": 1e-5,
            "attention.key_length": 16,
            "attention.value_length": 16,
            "logit_scale": 0.25,
            "attention.sliding_window": 16,
            "rope.scaling.type": "none",
        },
        {"logit_scale": 0.25, "sliding_window": 16},
    ),
}
