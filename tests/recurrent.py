"""Tiny models with recurrent layers, like `tests.tiny`: random weights, transformers is the oracle.

`CASES[name]` are the fields of a configuration beside those that all share, as far as its class has
them. Prompts are longer than the chunks in which transformers computes.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from tests import tiny

CONTEXT = 512
_SHARED = {
    "vocab_size": tiny.VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": CONTEXT, "bos_token_id": 257, "eos_token_id": 258,
    "pad_token_id": 256,
}  # fmt: skip
_MAMBA2 = {
    "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_chunk_size": 16,
}  # fmt: skip
_DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
    "linear_value_head_dim": 24, "layer_types": ["linear_attention"] * 3 + ["full_attention"],
}  # fmt: skip

CASES: dict[str, dict[str, Any]] = {
    "lfm2": {
        "layer_types": ["conv", "full_attention"] * 2, "block_auto_adjust_ff_dim": False,
        "conv_L_cache": 3,
    },
    "lfm2-bias": {
        "layer_types": ["conv", "full_attention"] * 2, "block_auto_adjust_ff_dim": False,
        "conv_L_cache": 5, "conv_bias": True,
    },
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2, "chunk_size": 16},
    "bamba": {"num_hidden_layers": 2, "attn_layer_indices": [1], "mamba_n_groups": 2} | _MAMBA2,
    "falcon_h1": {
        "num_hidden_layers": 2, "mamba_d_ssm": 128, "key_multiplier": 0.7,
        "ssm_multipliers": [0.5, 1.5, 0.75, 1.25, 0.9], "embedding_multiplier": 2.0,
        "lm_head_multiplier": 0.6,
    } | _MAMBA2,
    "falcon_h1-ones": {"num_hidden_layers": 2, "mamba_d_ssm": 128} | _MAMBA2,
    "zamba2": {
        "hybrid_layer_ids": [1, 3], "layers_block_type": ["mamba", "hybrid"] * 2,
        "num_mem_blocks": 1, "adapter_rank": 8, "mamba_d_state": 16, "n_mamba_heads": 8,
        "mamba_headdim": 16, "chunk_size": 16,
    },
    "nemotron_h": {
        "layers_block_type": ["mamba", "attention", "mlp", "mamba"], "mamba_num_heads": 8,
        "mamba_head_dim": 16, "ssm_state_size": 16, "chunk_size": 16, "n_groups": 1,
    },
    "mamba": {"num_hidden_layers": 2, "state_size": 16, "time_step_rank": 4},
    "falcon_mamba": {"num_hidden_layers": 2, "state_size": 16, "time_step_rank": 4},
    "jamba": {
        "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 20,
        "expert_layer_offset": 19, "num_experts": 1, "mamba_d_state": 16, "mamba_dt_rank": 4,
    },
    "qwen3_next": {"mlp_only_layers": [0, 1, 2, 3]} | _DELTA,
}  # fmt: skip


def config(name: str) -> dict[str, Any]:
    """config.json of a case."""
    kind = name.partition("-")[0]
    known = {field.name for field in dataclasses.fields(CONFIG_MAPPING[kind])}
    shared = {k: v for k, v in _SHARED.items() if k in known}
    return {"model_type": kind} | shared | CASES[name]


@cache
def model(name: str) -> PreTrainedModel:
    """The reference model. Decays keep the values that transformers starts with, plus noise."""
    fields = json.loads(json.dumps(config(name)))
    built = CONFIG_MAPPING[fields.pop("model_type")](**fields)
    seed = zlib.crc32(name.encode())
    with torch.random.fork_rng():  # the decays that it starts with are random
        torch.manual_seed(seed)
        made = AutoModelForCausalLM.from_config(
            built, attn_implementation="eager", dtype=torch.float32
        ).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, parameter in made.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1 or key.endswith("A_log"):
                parameter += 0.25 * noise
            else:
                parameter.copy_(noise * (1.5 / parameter.shape[-1] ** 0.5))
    return made.requires_grad_(False)


def logits(name: str, ids: list[int]) -> np.ndarray:
    """Reference logits `[tokens, vocab]`."""
    with torch.no_grad():
        out = model(name)(input_ids=torch.tensor([ids]), use_cache=False)
    return out.logits[0].numpy()


def save(name: str, folder: Path, dtype: str = "float32") -> Path:
    """Write the model as a Hugging Face directory and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    copy = AutoModelForCausalLM.from_config(model(name).config, dtype=torch.float32)
    copy.load_state_dict(model(name).state_dict())
    copy.to(getattr(torch, dtype)).save_pretrained(folder)
    head = {"architectures": [type(copy).__name__], "dtype": dtype}
    (folder / "config.json").write_text(json.dumps(head | config(name), indent=1))
    tiny.save_tokenizer(folder)
    return folder
