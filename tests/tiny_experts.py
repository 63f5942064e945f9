"""Tiny mixtures of experts for `tests.tiny`: a case for every kind of router and of experts."""

from __future__ import annotations

from typing import Any

_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
_GROUPS = {
    "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48, "n_group": 4,
    "topk_group": 2, "n_shared_experts": 1, "first_k_dense_replace": 1, "num_hidden_layers": 3,
    "routed_scaling_factor": 1.5, "head_dim": 16,
}  # fmt: skip

# name -> model type, fields
EXPERT_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    # top-k of a soft-max, renormalised
    "mixtral": (
        "mixtral", {"num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": 8},
    ),
    # a shared expert with a gate of its own
    "qwen2_moe": ("qwen2_moe", _EXPERTS | {"shared_expert_intermediate_size": 80}),
    # every second layer dense
    "qwen3_moe": (
        "qwen3_moe",
        _EXPERTS | {"head_dim": 16, "num_hidden_layers": 4, "decoder_sparse_step": 2,
                    "norm_topk_prob": True},
    ),
    "olmoe": ("olmoe", {"num_experts": 6, "num_experts_per_tok": 3, "clip_qkv": 2.0}),
    # soft-max of the top-k, experts stored stacked
    "granitemoe": (
        "granitemoe", {"num_local_experts": 5, "num_experts_per_tok": 2,
                       "embedding_multiplier": 3.0, "residual_multiplier": 0.5,
                       "attention_multiplier": 0.2, "logits_scaling": 2.0},
    ),
    "granitemoeshared": (
        "granitemoeshared", {"num_local_experts": 5, "num_experts_per_tok": 2,
                             "shared_intermediate_size": 48},
    ),
    # masks by thresholds, experts found one after the other
    "phimoe": ("phimoe", {"num_local_experts": 6, "num_experts_per_tok": 2}),
    # sigmoid, bias for the choice only, groups of experts
    "glm4_moe": ("glm4_moe", _GROUPS),
    "dots1": ("dots1", _GROUPS),
    "ernie4_5_moe": (
        "ernie4_5_moe",
        {"moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 48,
         "moe_num_shared_experts": 1, "moe_layer_start_index": 1, "num_hidden_layers": 3},
    ),
    "minimax_m2": (
        "minimax_m2", {"num_local_experts": 6, "num_experts_per_tok": 2, "head_dim": 16,
                       "rotary_dim": 8},
    ),
    # transposed experts with biases, gate and up taking turns and clamped
    "gpt_oss": (
        "gpt_oss", {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16,
                    "sliding_window": 8},
    ),
}  # fmt: skip
