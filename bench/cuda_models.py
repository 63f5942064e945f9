"""Models whose CUDA kernels are read: configs as published, planned without weights."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferc.codegen.library import Generated
from inferc.frontend.importer import ImportOptions, import_config
from inferc.lowering import lower
from inferc.options import resolve_options, silent

LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
QWEN3_30B_A3B: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 151643,
    "decoder_sparse_step": 1,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 151936,
}


@dataclass(frozen=True)
class Model:
    """A config, and the type of its weights: of all of them, or of linear layers and experts."""

    config: dict[str, Any]
    dtype: str


MODELS = {
    "llama-3.1-8b-bf16": Model(LLAMA_8B, "bf16"),
    "llama-3.1-8b-int4": Model(LLAMA_8B, "u4b_g128"),  # as GPTQ and AWQ store it
    "llama-3.1-8b-int8": Model(LLAMA_8B, "u8b_g128"),
    "llama-3.1-8b-fp8": Model(LLAMA_8B, "f8_g128"),
    "llama-3.1-8b-q4_k": Model(LLAMA_8B, "q4_k"),
    "qwen3-30b-a3b-bf16": Model(QWEN3_30B_A3B, "bf16"),
    "qwen3-30b-a3b-int4": Model(QWEN3_30B_A3B, "u4b_g128"),
}


def generated(name: str, target: str, **options: Any) -> Generated:
    """What the compiler generates for a model, with fields of CompileOptions."""
    model = MODELS[name]
    chosen = resolve_options({"target": target, **options})
    with tempfile.TemporaryDirectory(prefix="cuda-model-") as folder:
        path = Path(folder) / f"{name}.json"
        path.write_text(json.dumps(model.config))
        imported = import_config(path, ImportOptions(chosen.context_tokens), model.dtype)
    return lower(imported, chosen, silent).generated
