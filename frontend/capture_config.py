"""From config.json to a transformers config, without losing a field on the way.

transformers keeps fields that it does not know and ignores them; one that changes the mathematics
is then silently lost. Here a field must be known to the config class, or be named in its code or in
the modeling code, or be declared irrelevant; otherwise it is an error. Runs in the capture process.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import nn
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    GenerationConfig,
    PreTrainedConfig,
)

from inferc.errors import CompileError
from inferc.frontend.config_checks import layer_entries

# Fields that no forward pass in inference reads: bookkeeping, training, choices of other engines.
_IRRELEVANT = frozenset(
    """
    _name_or_path name_or_path _commit_hash transformers_version transformers.js_config auto_map
    torch_dtype dtype model_type architectures _attn_implementation_autoset attn_implementation
    unsloth_version unsloth_fixed quantize_config onnx_config language tags license
    initializer_range initializer_factor attention_dropout hidden_dropout dropout embd_pdrop
    resid_pdrop attn_pdrop layerdrop pretraining_tp gradient_checkpointing use_cache fp16 bf16
    router_aux_loss_coef output_router_logits aux_loss_coef cache_implementation
    task_specific_params finetuning_task problem_type id2label label2id num_labels
    output_attentions output_hidden_states return_dict torchscript pruned_heads
    tokenizer_class prefix sep_token_id decoder_start_token_id unk_token_id tokenizer_type
    keys_to_ignore_at_inference use_flash_attn flash_attn use_bfloat16 is_llama_config
    max_window_layers n_ctx max_sequence_length seq_length model_max_length use_reentrant
    _flash_attn_2_enabled ep_size
    """.split()
)
# Fields that describe what the classes do anyway, with the values that say so.
_DESCRIPTIVE: dict[str, tuple[Any, ...]] = {
    "rotary_pct": (1.0,),
    "interpolate_factor": (1,),
    "full_attn_mod": (1,),
    "position_embedding_type": ("rope_gptj", "rope"),
    "layer_switch": (4,),
    "order_of_interleaved_layers": ("local_attn_first",),
    "use_embedding_sharing": (True,),
    "use_gated_activation": (True,),
    "use_parallel_block": (True,),
    "use_parallel_embedding": (True,),
}
# The same, where other model types mean something else by the field.
_DESCRIPTIVE_OF: dict[str, dict[str, tuple[Any, ...]]] = {
    "deepseek_v3": {
        "scoring_func": ("sigmoid",),
        "topk_method": ("noaux_tc",),
        "moe_layer_freq": (1,),
    },
    "gpt_oss": {"initial_context_length": (4096,)},  # rope_scaling's original context
}
# Where a config says how long a sequence may be.
_LIMITS = ("max_position_embeddings", "max_seq_len", "max_target_positions")
# Older names that files give beside the new one; harmless where both say the same.
_RESTATED = {"hidden_act": "hidden_activation", "experts_per_token": "num_experts_per_tok"}
# Read by the rope machinery that all config classes with `rope_parameters` share.
_ROPE_FIELDS = frozenset({"rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor"})


def build(config: Mapping[str, Any]) -> PreTrainedConfig:
    """The transformers config. Raises CompileError for an unknown model type or field."""
    fields = dict(config)
    kind = fields.pop("model_type")
    if kind not in CONFIG_MAPPING or CONFIG_MAPPING[kind] not in MODEL_FOR_CAUSAL_LM_MAPPING:
        note = " Code that comes with a checkpoint (auto_map) is never run."
        remote = note if "auto_map" in fields else ""
        raise CompileError(
            f"config.json has model_type {kind!r}, which is no causal language model that "
            f"transformers {transformers.__version__} knows.{remote}"
        )
    built = CONFIG_MAPPING[kind](**fields)
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING[type(built)]
    wanted = fields.get("architectures") or [model_class.__name__]
    if model_class.__name__ not in wanted:
        raise CompileError(
            f"config.json says architecture {wanted[0]}, but only causal language models can be "
            f"compiled; for model_type {kind} that is {model_class.__name__}."
        )
    _check_fields(fields, built, model_class)
    _check_rope_kept(fields, built)
    return built


def context_limit(config: PreTrainedConfig) -> int | None:
    """The longest sequence that the model was made for, if its config says."""
    limits = (getattr(config, name, None) for name in _LIMITS)
    return next((limit for limit in limits if isinstance(limit, int) and limit > 0), None)


def _check_fields(
    fields: Mapping[str, Any], config: PreTrainedConfig, model_class: type[nn.Module]
) -> None:
    config_class = type(config)
    known = {f.name for f in dataclasses.fields(config_class)} | _IRRELEVANT
    known |= set(config_class.attribute_map) | set(GenerationConfig().to_dict())
    if "rope_parameters" in known:
        known |= _ROPE_FIELDS
    described = _DESCRIPTIVE | _DESCRIPTIVE_OF.get(config.model_type, {})
    unknown = [
        name
        for name, value in fields.items()
        if name not in known
        and value not in (None, False, "", [], {})  # switched off
        and value not in described.get(name, ())
        and not (name in _RESTATED and value == getattr(config, _RESTATED[name], None))
    ]
    if unknown:
        named = _names_in_code(config_class) | _names_in_code(model_class)
        unknown = [k for k in unknown if k not in named]
    if unknown:
        listed = ", ".join(f"{k} = {fields[k]!r}" for k in sorted(unknown))
        raise CompileError(
            f"config.json has fields that {config_class.__name__} and {model_class.__name__} do "
            f"not know: {listed}. If they change what the model computes, it cannot be compiled "
            "faithfully; if they do not, remove them from config.json."
        )


def _names_in_code(class_: type) -> set[str]:
    """Attribute names, keywords and short strings in the module that defines the class."""
    tree = ast.parse(inspect.getsource(sys.modules[class_.__module__]))
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.keyword | ast.arg) and node.arg:
            names.add(node.arg)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
    return names


def _check_rope_kept(fields: Mapping[str, Any], config: PreTrainedConfig) -> None:
    """The rotary settings that config.json gives must be those that the model uses."""
    nested = [k for k in layer_entries(fields.get("rope_parameters") or {}) if k]
    given = fields.get("rope_theta")
    rope = getattr(config, "rope_parameters", None)
    if not rope:
        return
    # A model may be cut so short that it has no layer of one of the kinds.
    if nested and not config.nested_rope_parameter_keys(rope):
        raise CompileError(
            f"config.json has rope_parameters for {', '.join(nested)}, but {type(config).__name__} "
            "does not rotate layers differently and would ignore them."
        )
    if given is None:
        return
    used = [entry.get("rope_theta") for entry in layer_entries(rope).values()]
    if given not in used:
        raise CompileError(
            f"config.json has rope_theta {given}, but transformers would use {used[0]}; remove the "
            "field that is wrong."
        )


def check_partial_rotary(model: nn.Module) -> None:
    """A partial rotary factor must have reached the frequencies; some classes ignore it."""
    for path, module in model.named_modules():
        config, frequencies = getattr(module, "config", None), getattr(module, "inv_freq", None)
        if not isinstance(frequencies, torch.Tensor) or not isinstance(config, PreTrainedConfig):
            continue
        factor = (config.rope_parameters or {}).get("partial_rotary_factor")
        kind = (config.rope_parameters or {}).get("rope_type")
        heads = getattr(config, "num_attention_heads", None)
        if factor is None or heads is None or kind == "proportional":
            continue
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        if -(-int(head_dim * factor) // 2) != frequencies.numel():
            raise CompileError(
                f"config.json has partial_rotary_factor {factor} for heads of {head_dim}, but "
                f"{path} ({type(module).__name__}) rotates {2 * frequencies.numel()} dimensions."
            )
