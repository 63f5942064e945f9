"""Tiny random models: the twelve dense architectures and their options; transformers is the oracle.

`CASES[name]` is a configuration; `config(name)` is its config.json; `model(name)` the transformers
model in float32, eager attention, random weights (norms and biases too); `save(name, folder)`
writes a Hugging Face directory with tokenizer; `logits(name, ids)` are the reference logits.
Everything is deterministic by the name. A name that is no case here is a model type of
`tests.architectures`.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tests import architectures
from tests.tiny_checklist import CHECK_CASES, COMPILED_CASES
from tests.tiny_experts import EXPERT_CASES
from tests.tiny_latent import LATENT_CASES

VOCAB = 384
CONTEXT = 512
_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
}
_TOKENS = {"bos_token_id": 257, "eos_token_id": 258, "pad_token_id": 256}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + 0.05 * i for i in range(8)],
    "long_factor": [1.5 + 0.5 * i for i in range(8)],
}


@dataclass(frozen=True)
class Case:
    """A model type and what differs from the common sizes; None drops a common field."""

    model_type: str
    fields: dict[str, Any] = field(default_factory=dict)
    context_tokens: int | None = None  # for capture; None is the model's own limit
    lengths: tuple[int, ...] = (1, 21)  # prompt lengths worth testing

    @property
    def longest(self) -> int:
        return max(self.lengths)


def _llama(**fields: Any) -> Case:
    return Case("llama", fields)


_GPT2 = {
    **dict.fromkeys(_SIZES),
    "vocab_size": VOCAB,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": CONTEXT,
}
_COHERE = {
    "num_hidden_layers": 4,
    "sliding_window": 8,
    "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
}

CASES: dict[str, Case] = {
    "llama": _llama(),
    "llama-tied": _llama(tie_word_embeddings=True),
    "llama-bias": _llama(attention_bias=True, mlp_bias=True),
    "llama-heads": _llama(head_dim=24, num_key_value_heads=4),
    "llama-gelu": _llama(hidden_act="gelu_pytorch_tanh"),
    "llama-linear": _llama(
        rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    ),
    "llama-yarn": _llama(rope_parameters=_YARN),
    "llama-yarn-mscale": _llama(
        rope_parameters=_YARN | {"mscale": 1.0, "mscale_all_dim": 0.8, "truncate": False}
    ),
    "llama-llama3": _llama(rope_parameters=_LLAMA3),
    "llama-old-spelling": _llama(
        rope_theta=500.0, rope_scaling={k: v for k, v in _LLAMA3.items() if k != "rope_theta"}
    ),
    "mistral": Case("mistral", {"sliding_window": 8}),
    "mistral-full": Case("mistral", {"sliding_window": None, "head_dim": 32}),
    "qwen2": Case("qwen2"),
    "qwen2-window": Case(
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1,
         "tie_word_embeddings": True},
    ),
    "qwen3": Case("qwen3", {"head_dim": 32}),
    "qwen3-bias-tied": Case(
        "qwen3", {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": True}
    ),
    "smollm3": Case("smollm3", {"num_hidden_layers": 4, "no_rope_layer_interval": 4}),
    "smollm3-untied": Case(
        "smollm3", {"no_rope_layers": [0, 1], "tie_word_embeddings": False, "mlp_bias": True}
    ),
    "gemma2": Case(
        "gemma2", {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 24,
                   "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
    ),
    "gemma3": Case(
        "gemma3_text", {"num_hidden_layers": 6, "head_dim": 16, "sliding_window": 8,
                        "query_pre_attn_scalar": 24},
    ),
    "gemma3-scaled": Case(
        "gemma3_text",
        {"num_hidden_layers": 3, "head_dim": 32, "sliding_window": 8,
         "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
         "rope_theta": 50000.0, "rope_local_base_freq": 700.0,
         "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "tie_word_embeddings": False},
    ),
    "gpt2": Case("gpt2", _GPT2),
    "gpt2-scaled": Case(
        "gpt2", _GPT2 | {"scale_attn_by_inverse_layer_idx": True, "activation_function": "gelu",
                         "n_inner": 80, "tie_word_embeddings": False},
    ),
    "phi3": Case("phi3", {"sliding_window": 8}),
    "phi3-partial": Case("phi3", {"partial_rotary_factor": 0.5, "tie_word_embeddings": True}),
    "phi3-longrope-short": Case(
        "phi3", {"rope_parameters": _LONG, "original_max_position_embeddings": 24},
        context_tokens=24,
    ),
    "phi3-longrope-long": Case(
        "phi3", {"rope_parameters": _LONG, "original_max_position_embeddings": 24},
        lengths=(25, 40),
    ),
    "granite": Case(
        "granite", {"embedding_multiplier": 3.0, "residual_multiplier": 0.22,
                    "attention_multiplier": 0.15, "logits_scaling": 2.5},
    ),
    "granite-bias-tied": Case(
        "granite", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True,
                    "embedding_multiplier": 12.0},
    ),
    "olmo2": Case("olmo2"),
    "olmo2-heads": Case("olmo2", {"num_key_value_heads": 4, "attention_bias": True}),
    "cohere2": Case("cohere2", _COHERE | {"logit_scale": 0.25}),
    "cohere2-untied": Case("cohere2", _COHERE | {"tie_word_embeddings": False}),
    **{name: Case(kind, fields) for name, (kind, fields) in EXPERT_CASES.items()},
}  # fmt: skip

# What `tests.checklist` or `tests.e2e.test_latent` looks at, and no other test.
_OTHERS = CHECK_CASES | COMPILED_CASES | LATENT_CASES
_KNOWN = CASES | {name: Case(*case) for name, case in _OTHERS.items()}

# One case an architecture, for tests that need not see every option.
ARCHITECTURES = (
    "llama", "mistral", "qwen2", "qwen3", "smollm3", "gemma2", "gemma3", "gpt2", "phi3", "granite",
    "olmo2", "cohere2",
)  # fmt: skip


def case_of(name: str) -> Case:
    """A known case; any other model type as `tests.architectures` declares it."""
    if name in _KNOWN:
        return _KNOWN[name]
    return Case(name, context_tokens=architectures.CONTEXT_TOKENS.get(name))


def config(name: str) -> dict[str, Any]:
    """config.json of a case, spelled as the case spells it."""
    if name not in _KNOWN:
        return architectures.config(name)
    case = _KNOWN[name]
    fields = _SIZES | _TOKENS | case.fields
    dropped = [k for k, v in case.fields.items() if v is None and k in _SIZES]
    return {"model_type": case.model_type} | {k: v for k, v in fields.items() if k not in dropped}


_DERIVED = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")  # of one another


@cache
def model(name: str) -> PreTrainedModel:
    """The reference model: eager attention, float32, random weights everywhere."""
    fields = json.loads(json.dumps(config(name)))
    built = AutoConfig.for_model(fields.pop("model_type"), **fields)
    seed = zlib.crc32(name.encode())
    with torch.random.fork_rng():  # what transformers starts with may be random: sinks, decays
        torch.manual_seed(seed)
        made = AutoModelForCausalLM.from_config(
            built, attn_implementation="eager", dtype=torch.float32
        ).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:  # keep what transformers starts with: 0 for biases, 1 for norms
                parameter += 0.25 * noise
            else:
                parameter.copy_(noise * (1.5 / parameter.shape[-1] ** 0.5))
        stored = made.state_dict()
        for buffer_name, buffer in made.named_buffers():  # biases of routers
            derived = buffer_name.endswith(_DERIVED)
            if buffer_name in stored and buffer.is_floating_point() and not derived:
                buffer += 0.25 * torch.randn(buffer.shape, generator=generator)
    return made.requires_grad_(False)


def logits(name: str, ids: np.ndarray) -> np.ndarray:
    """Reference logits `[B, S, V]` for whole sequences."""
    with torch.no_grad():
        out = model(name)(input_ids=torch.from_numpy(np.asarray(ids, np.int64)), use_cache=False)
    return out.logits.numpy()


def parameters(name: str) -> dict[str, np.ndarray]:
    """All stored tensors by parameter name, tied ones under every name."""
    return {key: value.numpy() for key, value in model(name).state_dict().items()}


def ids(name: str, batch: int, length: int, seed: int = 0) -> np.ndarray:
    """Random token ids."""
    rng = np.random.default_rng([zlib.crc32(name.encode()), seed])
    return rng.integers(0, VOCAB, (batch, length))


def save(name: str, folder: Path, *, dtype: str = "float32", shards: int = 1) -> Path:
    """Write the model as a Hugging Face directory and return it."""
    source = model(name)
    total = sum(p.numel() * p.element_size() for p in source.parameters())
    folder.mkdir(parents=True, exist_ok=True)
    copy = AutoModelForCausalLM.from_config(source.config, dtype=torch.float32)
    copy.load_state_dict(source.state_dict())
    copy.to(getattr(torch, dtype)).save_pretrained(
        folder, max_shard_size=total if shards == 1 else max(total // shards, 1)
    )
    # The case's own spelling of the config, not the one transformers saves.
    head = {"architectures": [type(source).__name__], "dtype": dtype}
    (folder / "config.json").write_text(json.dumps(head | config(name), indent=1))
    save_tokenizer(folder)
    return folder


def save_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer: 256 bytes, three special tokens, a few merges."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate(alphabet)}
    tokens = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    tokens.add_special_tokens(["<pad>", "<s>", "</s>"])
    tokens.save(str(folder / "tokenizer.json"))
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    template = "{% for m in messages %}{{ m['content'] }}{{ eos_token }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **special,
                    "chat_template": template})
    )  # fmt: skip
    (folder / "generation_config.json").write_text(json.dumps(_TOKENS))
