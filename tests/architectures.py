"""A tiny configuration of every model type that transformers' AutoModelForCausalLM knows.

`SIZES` is a pool of small values by field name: a configuration takes those that its class has, so
a type is listed in `TABLE` only where it needs something else. `None` drops a value of the pool. A
window is shorter than the prompts of the tests, layers of every kind occur, and fields that switch
mathematics on are on. `NOT_TEXT` names the types that are no text decoders, with the reason.

The twelve architectures of the foundation, with their options, are in `tests.tiny`.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

_TOKENS = {"bos_token_id": 257, "eos_token_id": 258, "pad_token_id": 256}
_WIDTHS = dict.fromkeys(
    ("hidden_size", "n_embd", "d_model", "emb_dim", "embedding_size", "input_embedding_size",
     "output_embedding_size", "word_embed_proj_dim"), 64,
)  # fmt: skip
_INNER = dict.fromkeys(
    ("intermediate_size", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim", "dff", "d_inner",
     "n_inner", "dim_ff", "intermediate_size_mlp", "ffn_hidden_size", "feed_forward_size",
     "dense_intermediate_size", "prefix_dense_intermediate_size"), 96,
)  # fmt: skip
_LAYERS = dict.fromkeys(
    ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "decoder_layers", "encoder_layers"),
    2,
)
_HEADS = dict.fromkeys(
    ("num_attention_heads", "n_head", "num_heads", "n_heads", "attention_heads",
     "decoder_attention_heads", "encoder_attention_heads", "swa_num_attention_heads",
     "linear_num_value_heads"), 4,
)  # fmt: skip
_GROUPS = dict.fromkeys(
    ("num_key_value_heads", "num_kv_heads", "swa_num_key_value_heads", "linear_num_key_heads"), 2
)
_HEAD_SIZES = dict.fromkeys(
    ("head_dim", "dim_head", "v_head_dim", "qk_nope_head_dim", "index_head_dim", "swa_head_dim",
     "linear_key_head_dim", "linear_value_head_dim", "kv_channels", "mamba_head_dim",
     "mamba_d_state", "mamba_headdim", "ssm_state_size", "state_size", "attention_head_size"), 16,
) | {"qk_rope_head_dim": 8}  # fmt: skip
_CONTEXT = dict.fromkeys(
    ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_target_positions",
     "context_length", "model_max_length"), 512,
)  # fmt: skip
_WINDOWS = dict.fromkeys(
    ("sliding_window", "window_size", "attention_window_size", "sliding_window_size",
     "attention_chunk_size", "local_attention"), 8,
)  # fmt: skip
_EXPERTS = {
    **dict.fromkeys(
        ("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size",
         "shared_intermediate_size", "moe_shared_expert_intermediate_size"), 48,
    ),
    **dict.fromkeys(
        ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 8
    ),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts"), 2),
    **dict.fromkeys(("n_shared_experts", "first_k_dense_replace", "num_dense_layers", "n_group",
                     "topk_group"), 1),
}  # fmt: skip
_LOW_RANK = {"q_lora_rank": 32, "kv_lora_rank": 24, "index_n_heads": 2, "index_topk": 8}

SIZES: dict[str, Any] = {
    "vocab_size": 384,
    **_WIDTHS, **_INNER, **_LAYERS, **_HEADS, **_GROUPS, **_HEAD_SIZES, **_CONTEXT, **_WINDOWS,
    **_EXPERTS, **_LOW_RANK, **_TOKENS,
    "chunk_size": 16, "mamba_chunk_size": 16, "mamba_n_heads": 8, "mamba_d_head": 16,
    "mamba_num_heads": 8, "n_mamba_heads": 8, "time_step_rank": 4, "mamba_dt_rank": 4,
    "rotary_dim": 8, "query_pre_attn_scalar": 24, "block_size": 8, "type_vocab_size": 2,
}  # fmt: skip

_DECODER = {"is_decoder": True}
_BART = {"is_decoder": True, "is_encoder_decoder": False}
_MLA = {"num_key_value_heads": 4, "head_dim": 8}
# The context is so short that the index of sparse attention selects all keys: no other is compiled.
_ALL_KEYS = {"index_topk": 512}
_ALTERNATING = {
    "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2,
}  # fmt: skip
_LINEAR = {
    "num_hidden_layers": 4, "layer_types": ["linear_attention"] * 3 + ["full_attention"],
}  # fmt: skip
_CONV = {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention"] * 2}

# model type -> fields beside the pool
TABLE: dict[str, dict[str, Any]] = {
    "afmoe": _ALTERNATING,
    "axk1": _MLA, "sarvam_mla": _MLA,
    "axk2": _MLA | _ALL_KEYS, "dots3_note_text": _MLA | _ALL_KEYS, "glm_moe_dsa": _MLA | _ALL_KEYS,
    "hy_v4": _ALL_KEYS,
    "bamba": {"attn_layer_indices": [1]},
    "bloom": {"hidden_size": 64},
    "cohere": {"use_qk_norm": True},
    "cohere_compass_text": _ALTERNATING | {"rope_parameters": {
        kind: {"rope_type": "default", "rope_theta": 10000.0}
        for kind in ("full_attention", "sliding_attention")}},
    "cwm": {"layer_types": ["full_attention", "sliding_attention"]},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
        "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 8, "moe_top_k": 2},
    },
    "deepseek_v2": _MLA,
    "deepseek_v3": _MLA | {"num_hidden_layers": 3, "n_group": 2},
    "deepseek_v32": _MLA | _ALL_KEYS | {"n_group": 2},
    "deepseek_v4": {"num_hidden_layers": 3},
    "ernie4_5_moe": {},
    "exaone4": _ALTERNATING,
    "falcon": {"new_decoder_architecture": True, "alibi": False},
    "falcon_h1": {"mamba_d_ssm": 128},
    "gemma2": {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
    "gemma3_text": {"num_hidden_layers": 6},
    "gemma3n_text": {
        "num_hidden_layers": 6, "intermediate_size": [96] * 6, "vocab_size_per_layer_input": 384,
        "hidden_size_per_layer_input": 16, "num_kv_shared_layers": 2, "laurel_rank": 8,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        "activation_sparsity_pattern": [0.95] + [0.0] * 5,
    },
    "gemma4_text": {
        "num_hidden_layers": 6, "vocab_size_per_layer_input": 384,
        "hidden_size_per_layer_input": 16, "global_head_dim": 32, "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        "num_experts": None, "top_k_experts": None, "moe_intermediate_size": None,
    },
    "gemma4_unified_text": {
        "num_hidden_layers": 6, "global_head_dim": 32, "use_bidirectional_attention": None,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    },
    "glm4_moe_lite": _MLA,
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "intermediate_size": 96},
    "gpt_neox": {"rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "granite_swa": _ALTERNATING,
    "hrm_text": {"num_hidden_layers": 2},
    "jamba": {
        "num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1,
        "expert_layer_period": 2, "expert_layer_offset": 1,
    },
    "inkling2_loop_text": {"unpadded_vocab_size": 384},
    "inkling2_text": {"unpadded_vocab_size": 384},
    "kimi_linear": _MLA | _LINEAR | {"linear_head_dim": 16, "linear_num_heads": 4},
    "roc_bert": _DECODER | {"pronunciation_vocab_size": 384, "shape_vocab_size": 384},
    "lfm2": _CONV | {"block_auto_adjust_ff_dim": False},
    "lfm2_moe": _CONV,
    "llama4_text": {"num_hidden_layers": 4},
    "longcat_flash": _MLA | {"zero_expert_num": 2},
    "mamba2": {"num_heads": 8, "n_groups": 1, "chunk_size": 16, "head_dim": 16},
    "minicpm3": {"num_key_value_heads": 4, "head_dim": None},
    "minimax": {"layer_types": ["linear_attention", "full_attention"]},
    "ministral": _ALTERNATING,
    "mpt": {"attn_config": {"alibi": True}},
    "nemotron_h": {
        "num_hidden_layers": None, "layers_block_type": ["mamba", "attention", "mlp", "mamba"],
        "n_groups": 1,
    },
    "olmo": {"clip_qkv": 0.5},
    "olmo3": _ALTERNATING,
    "olmo_hybrid": _LINEAR,
    "persimmon": {"num_key_value_heads": None},
    # with keys of 16, transformers' own float32 is off by more than the tolerance
    "qwen3_5_moe_text": _LINEAR | {"head_dim": 32, "linear_key_head_dim": 32},
    "qwen3_5_text": _LINEAR | {"head_dim": 32},
    "qwen3_next": _LINEAR,
    "recurrent_gemma": {"num_hidden_layers": 3, "lru_width": 64},
    "smollm3": {"num_hidden_layers": 4, "no_rope_layer_interval": 4},
    "vaultgemma": {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
    "youtu": _MLA,
    "zamba": {"num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid"] * 2},
    "zamba2": {
        "num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid"] * 2, "chunk_size": 16,
        "adapter_rank": 8,
    },
    # decoders of encoder-decoder models and of BERT's family, used as language models
    **dict.fromkeys(
        ("bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart", "mvp",
         "pegasus", "plbart", "trocr"), _BART,
    ),
    **dict.fromkeys(
        ("bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie",
         "megatron-bert", "rembert", "roberta", "roberta-prelayernorm", "roformer",
         "xlm-roberta", "xlm-roberta-xl"), _DECODER,
    ),
}  # fmt: skip
TABLE["xmod"] = _DECODER | {"default_language": "en_XX"}
TABLE["zaya"] = {"num_experts_per_tok": 1}
TABLE["reformer"] = _DECODER | {"axial_pos_shape": (16, 32), "axial_pos_embds_dim": (16, 48)}
TABLE["big_bird"] = _DECODER | {"attention_type": "original_full"}
TABLE["bigbird_pegasus"] = _BART | {"attention_type": "original_full"}

# model type -> context to compile for, where the configuration names none
CONTEXT_TOKENS = dict.fromkeys(
    ("bloom", "cpmant", "falcon_mamba", "mamba", "mamba2", "recurrent_gemma", "xlnet", "xlstm"), 512
)

# model type -> what its configuration describes instead of a text decoder
_MULTIMODAL = "a multimodal model (its text tower has a type of its own)"
NOT_TEXT: dict[str, str] = {
    **dict.fromkeys(
        ("dots3_note", "emu3", "fuyu", "gemma3", "gemma3n", "gemma4", "gemma4_unified", "git",
         "got_ocr2", "llama4", "mllama", "moss_transcribe_diarize", "phi4_multimodal", "qwen3_5",
         "qwen3_5_moe", "qwen4_exp"), _MULTIMODAL,
    ),
    **dict.fromkeys(("moshi", "musicgen", "musicgen_melody", "whisper"), "an audio model"),
    "gemma4_assistant": "a draft model that reads another model's states",
    "gemma4_unified_assistant": "a draft model that reads another model's states",
    "blt": "a byte model whose patches depend on the data",
}  # fmt: skip


@cache
def model_types() -> tuple[str, ...]:
    """All types of AutoModelForCausalLM that are text decoders."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return tuple(name for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if name not in NOT_TEXT)


def config(model_type: str) -> dict[str, Any]:
    """config.json of a tiny model of this type."""
    from transformers import CONFIG_MAPPING

    own = TABLE.get(model_type, {})
    known = {f.name for f in dataclasses.fields(CONFIG_MAPPING[model_type])}
    pool = {k: v for k, v in SIZES.items() if k in known}
    fields = {k: v for k, v in (pool | own).items() if not (v is None and k in SIZES)}
    return {"model_type": model_type} | fields
