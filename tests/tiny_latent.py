"""Tiny models with latent attention of sizes that all differ."""

from __future__ import annotations

from typing import Any

_DEEPSEEK: dict[str, Any] = {
    "hidden_size": 96,
    "num_key_value_heads": 6, "num_attention_heads": 6, "qk_nope_head_dim": 20,
    "qk_rope_head_dim": 12, "v_head_dim": 28, "kv_lora_rank": 40, "head_dim": 12,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
    "first_k_dense_replace": 1, "n_shared_experts": 1, "n_group": 2, "topk_group": 1,
    "num_hidden_layers": 2,
}  # fmt: skip

# case -> model type, fields; every head has other sizes for keys, shared keys and values
LATENT_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "latent-whole-query": ("deepseek_v2", _DEEPSEEK | {"q_lora_rank": None}),
    "latent-halves": ("deepseek_v3", _DEEPSEEK | {"q_lora_rank": 24, "rope_interleave": False}),
    "latent-yarn": (
        "deepseek_v3",
        _DEEPSEEK | {"q_lora_rank": 24, "rope_interleave": True, "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "mscale": 1.0,
            "mscale_all_dim": 0.7, "original_max_position_embeddings": 128,
            "beta_fast": 32.0, "beta_slow": 1.0}},
    ),
    # The latent is no narrower than keys and values together: the expanded form is kept.
    "latent-wide": (
        "deepseek_v2",
        _DEEPSEEK | {"q_lora_rank": None, "kv_lora_rank": 400},
    ),
}  # fmt: skip
