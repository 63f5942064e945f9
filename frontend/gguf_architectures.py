"""What GGUF stores for each architecture, as data: config keys, names, and changed weights.

One entry states how llama.cpp's converter departs from the Hugging Face model, read from its
`conversion/` scripts and, for values that no file holds, from its `src/models/*.cpp`. All else
in the GGUF frontend is generic, so a further architecture is a further entry here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

ConfigValue = int | float | bool | str | None


class Change(Enum):
    """How a stored tensor differs from the parameter."""

    QUERY_ROWS = "rows of each query head are in interleaved rope order"
    KEY_ROWS = "rows of each key head are in interleaved rope order"
    PLUS_ONE = "stored as 1 + w"
    TRANSPOSED = "stored [out, in], the parameter is [in, out]"
    SQUEEZED = "stored [in], the parameter is [1, in]"


@dataclass(frozen=True)
class Rope:
    """How an architecture reads the `rope.*` keys."""

    partial: bool = False
    """Whether the model can rotate a part of each head."""
    two_tables: bool = False
    """Whether sliding layers have their own table, without scaling."""
    local_theta: float | None = None
    """Theta of that table if the file has no `rope.freq_base_swa`; None: the theta of the other."""


@dataclass(frozen=True)
class Window:
    """Sliding windows by `attention.sliding_window` and `attention.sliding_window_pattern`."""

    pattern: int | None
    """Of every `pattern` layers the last attends to everything; None: all layers slide."""
    default_tokens: int | None = None
    """Window if the file has none; None: all layers attend to everything."""


@dataclass(frozen=True)
class Architecture:
    """One GGUF architecture."""

    model_type: str
    names: Mapping[str, str]
    """GGUF tensor to parameter, both without `.weight`/`.bias`, layer number as `{i}`."""
    keys: Mapping[str, str]
    """Metadata key below the architecture's prefix to config name; the file must have it."""
    optional: Mapping[str, tuple[str, ConfigValue]] = field(default_factory=dict)
    """As `keys`, with the value that a file without the key means."""
    constants: Mapping[str, ConfigValue] = field(default_factory=dict)
    """Config values that no file holds."""
    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Config switch to the tensors of which any, if present, means that it is on."""
    changes: Mapping[str, Change] = field(default_factory=dict)
    """Changed tensors, keys as in `names` with the suffix: `blk.{i}.attn_q.weight`."""
    stacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Parameter of stacked experts to the tensors that are its pieces along axis 1."""
    rope: Rope | None = field(default_factory=Rope)
    window: Window | None = None
    scale_key: str | None = None
    """Key of `attention_multiplier`, the factor on the scores; absent: 1 / sqrt(head size)."""
    wide_query_layers: int | None = None
    """Gemma: scores are divided by sqrt(head size), but in the one size of the model with this
    many layers by sqrt(hidden size / heads)."""


def _names(prefix: str, layers: Mapping[str, str], ends: Mapping[str, str]) -> Mapping[str, str]:
    blocks = {f"blk.{{i}}.{gguf}": f"{prefix}.{{i}}.{name}" for gguf, name in layers.items()}
    return MappingProxyType({**ends, **blocks})


_ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_ATTENTION = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_QK_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_PRE_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_POST_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}

_EXPERTS = {
    "model.layers.{i}.mlp.experts.gate_up_proj": (
        "blk.{i}.ffn_gate_exps.weight",
        "blk.{i}.ffn_up_exps.weight",
    ),
    "model.layers.{i}.mlp.experts.down_proj": ("blk.{i}.ffn_down_exps.weight",),
}
_ROUTER = {"ffn_gate_inp": "mlp.gate"}
_SHARED_EXPERT = {
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
_LLAMA_NAMES = _names("model.layers", {**_PRE_NORMS, **_ATTENTION, **_MLP}, _ENDS)
_QWEN3_NAMES = _names("model.layers", {**_PRE_NORMS, **_ATTENTION, **_QK_NORMS, **_MLP}, _ENDS)
_QWEN2_MOE_NAMES = _names(
    "model.layers", {**_PRE_NORMS, **_ATTENTION, **_ROUTER, **_SHARED_EXPERT}, _ENDS
)
_QWEN3_MOE_NAMES = _names(
    "model.layers", {**_PRE_NORMS, **_ATTENTION, **_QK_NORMS, **_ROUTER}, _ENDS
)
_GEMMA_NORMS = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    **_POST_NORMS,
}
_GEMMA_NAMES = _names("model.layers", {**_GEMMA_NORMS, **_ATTENTION, **_QK_NORMS, **_MLP}, _ENDS)
_OLMO_NAMES = _names("model.layers", {**_POST_NORMS, **_ATTENTION, **_QK_NORMS, **_MLP}, _ENDS)
_COHERE_NAMES = _names(
    "model.layers", {"attn_norm": "input_layernorm", **_ATTENTION, **_MLP}, _ENDS
)
_PHI3_NAMES = _names(
    "model.layers",
    {
        **_PRE_NORMS,
        "attn_qkv": "self_attn.qkv_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_up": "mlp.gate_up_proj",
        "ffn_down": "mlp.down_proj",
    },
    _ENDS,
)
_GPT2_NAMES = _names(
    "transformer.h",
    {
        "attn_norm": "ln_1",
        "attn_qkv": "attn.c_attn",
        "attn_output": "attn.c_proj",
        "ffn_norm": "ln_2",
        "ffn_up": "mlp.c_fc",
        "ffn_down": "mlp.c_proj",
    },
    {
        "token_embd": "transformer.wte",
        "position_embd": "transformer.wpe",
        "output_norm": "transformer.ln_f",
        "output": "lm_head",
    },
)

_SIZES = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}
_RMS = {**_SIZES, "attention.layer_norm_rms_epsilon": "rms_norm_eps"}
_EXPERT_SIZES = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}

_PERMUTED = {
    f"blk.{{i}}.{name}.{suffix}": change
    for name, change in (("attn_q", Change.QUERY_ROWS), ("attn_k", Change.KEY_ROWS))
    for suffix in ("weight", "bias")
}
_GEMMA_PLUS_ONE = {
    f"{name}.weight": Change.PLUS_ONE for name in _GEMMA_NAMES if name.endswith("_norm")
}
_CONV1D = {
    f"blk.{{i}}.{name}.weight": Change.TRANSPOSED
    for name in ("attn_qkv", "attn_output", "ffn_up", "ffn_down")
}
_ATTENTION_BIAS = {"attention_bias": ("blk.0.attn_q.bias", "blk.0.attn_qkv.bias")}
_BIASES = {**_ATTENTION_BIAS, "mlp_bias": ("blk.0.ffn_up.bias",)}
_GEMMA_ACTIVATION = {"hidden_activation": "gelu_pytorch_tanh"}

_LLAMA = Architecture("llama", _LLAMA_NAMES, _RMS, flags=_BIASES, changes=_PERMUTED)

ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": _LLAMA,
    "qwen2": Architecture("qwen2", _LLAMA_NAMES, _RMS),
    "qwen3": Architecture("qwen3", _QWEN3_NAMES, _RMS, flags=_ATTENTION_BIAS),
    # Whether weights are renormalised stands in qwen2moe.cpp and qwen3moe.cpp (norm_w).
    "qwen2moe": Architecture(
        "qwen2_moe",
        _QWEN2_MOE_NAMES,
        {
            **_RMS,
            **_EXPERT_SIZES,
            "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
        },
        constants={"norm_topk_prob": False, "decoder_sparse_step": 1},
        changes={"blk.{i}.ffn_gate_inp_shexp.weight": Change.SQUEEZED},
        stacks=_EXPERTS,
    ),
    "qwen3moe": Architecture(
        "qwen3_moe",
        _QWEN3_MOE_NAMES,
        {**_RMS, **_EXPERT_SIZES},
        constants={"norm_topk_prob": True, "decoder_sparse_step": 1},
        flags=_ATTENTION_BIAS,
        stacks=_EXPERTS,
    ),
    # Every 4th layer has no rope: smollm3.cpp's n_no_rope_layer_step, and the HF default.
    "smollm3": Architecture(
        "smollm3",
        _LLAMA_NAMES,
        _RMS,
        constants={"no_rope_layer_interval": 4},
        flags=_BIASES,
        changes=_PERMUTED,
    ),
    "gemma2": Architecture(
        "gemma2",
        _GEMMA_NAMES,
        _RMS,
        optional={
            # gemma2.cpp reads these with the values of the HF config as defaults.
            "attn_logit_softcapping": ("attn_logit_softcapping", 50.0),
            "final_logit_softcapping": ("final_logit_softcapping", 30.0),
        },
        constants=_GEMMA_ACTIVATION,
        flags=_ATTENTION_BIAS,
        changes=_GEMMA_PLUS_ONE,
        window=Window(pattern=2, default_tokens=4096),
        wide_query_layers=46,
    ),
    # The theta of the sliding layers is not in older files: llama.cpp's rope_freq_base_train_swa
    # and Gemma3TextConfig.default_theta["local"] are both 10000.
    "gemma3": Architecture(
        "gemma3_text",
        _GEMMA_NAMES,
        _RMS,
        optional={"final_logit_softcapping": ("final_logit_softcapping", None)},
        constants=_GEMMA_ACTIVATION,
        flags=_ATTENTION_BIAS,
        changes=_GEMMA_PLUS_ONE,
        rope=Rope(two_tables=True, local_theta=10000.0),
        window=Window(pattern=6),
        wide_query_layers=62,
    ),
    "gpt2": Architecture(
        "gpt2",
        _GPT2_NAMES,
        {
            "block_count": "n_layer",
            "context_length": "n_positions",
            "embedding_length": "n_embd",
            "feed_forward_length": "n_inner",
            "attention.head_count": "n_head",
            "attention.layer_norm_epsilon": "layer_norm_epsilon",
        },
        constants={"activation_function": "gelu_new"},
        changes=_CONV1D,
        rope=None,
    ),
    "phi3": Architecture("phi3", _PHI3_NAMES, _RMS, rope=Rope(partial=True), window=Window(None)),
    "granite": Architecture(
        "granite",
        _LLAMA_NAMES,
        {**_RMS, "logit_scale": "logits_scaling"},
        optional={
            "embedding_scale": ("embedding_multiplier", 1.0),
            "residual_scale": ("residual_multiplier", 1.0),
        },
        flags=_BIASES,
        changes=_PERMUTED,
        scale_key="attention.scale",
    ),
    "olmo2": Architecture("olmo2", _OLMO_NAMES, _RMS, flags=_ATTENTION_BIAS),
    "cohere2": Architecture(
        "cohere2",
        _COHERE_NAMES,
        {
            **_SIZES,
            "attention.layer_norm_epsilon": "layer_norm_eps",
            "logit_scale": "logit_scale",
        },
        flags=_ATTENTION_BIAS,
        window=Window(pattern=4),
    ),
}

# Entries that a file with `attention.sliding_window` means instead: Mistral 7B v0.1 is stored as
# llama, OLMo 3 as olmo2 (olmo2.cpp: pattern 4, sliding layers without rope scaling).
WINDOWED_VARIANTS: Mapping[str, Architecture] = {
    "llama": Architecture("mistral", _LLAMA_NAMES, _RMS, changes=_PERMUTED, window=Window(None)),
    "olmo2": Architecture(
        "olmo3",
        _OLMO_NAMES,
        _RMS,
        flags=_ATTENTION_BIAS,
        rope=Rope(two_tables=True),
        window=Window(pattern=4),
    ),
}

# Entries that a file with experts means instead: Mixtral is stored as llama.
EXPERT_VARIANTS: Mapping[str, Architecture] = {
    "llama": Architecture(
        "mixtral",
        _names("model.layers", {**_PRE_NORMS, **_ATTENTION, **_ROUTER}, _ENDS),
        {**_RMS, "expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
        changes=_PERMUTED,
        stacks=_EXPERTS,
    ),
}

# Keys that change nothing that is computed here.
IRRELEVANT_KEYS = frozenset(
    {
        "vocab_size",  # the embedding's rows say it
        "tensor_data_layout",
        "pooling_type",
        "rope.scaling.finetuned",
    }
)

# Keys that change nothing as long as they have this value.
NEUTRAL_VALUES: Mapping[str, tuple[ConfigValue, ...]] = {
    "expert_count": (0,),
    "expert_used_count": (0,),
    "leading_dense_block_count": (0,),
    "nextn_predict_layers": (0,),
    "attention.causal": (True,),
    "attention.max_alibi_bias": (0.0,),
    "attention.clamp_kqv": (0.0,),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "attention.sliding_window": (0,),
    "attention.sliding_window_pattern": (1,),
    "use_parallel_residual": (False,),
}
