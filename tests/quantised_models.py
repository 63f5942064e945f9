"""Tiny models whose linear layers are quantised, beside the same models with the values they mean.

`save(family, method, folder)` writes `folder/quantised` as a library would store it and
`folder/plain`, an ordinary float32 checkpoint of the dequantised weights: the reference.
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from tests import quantised, tiny
from tests.quantised import Quantiser

_SIZES = {
    "vocab_size": tiny.VOCAB, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": tiny.CONTEXT,
    "bos_token_id": 257, "eos_token_id": 258, "pad_token_id": 256,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"tie_word_embeddings": True},
    "phi3": {},
    "falcon": {"intermediate_size": None, "num_key_value_heads": None},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 32,
                "sliding_window": 8, "intermediate_size": 96},
    "deepseek_v3": {
        "num_key_value_heads": 4, "n_routed_experts": 8, "num_experts_per_tok": 3,
        "moe_intermediate_size": 128, "n_group": 4, "topk_group": 2, "n_shared_experts": 1,
        "first_k_dense_replace": 1, "routed_scaling_factor": 1.5, "q_lora_rank": 128,
        "kv_lora_rank": 128, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
        "head_dim": 16,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Method:
    """A quantiser, and what config.json says of it."""

    quantise: Quantiser
    fields: dict[str, Any]
    head: bool = False  # lm_head is quantised too


def _compressed(form: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"symmetric": True, "type": "int", **weights}}
    return {
        "quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"],
        "quantization_status": "compressed", "config_groups": {"group_0": group},
    }  # fmt: skip


_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}
METHODS: dict[str, Method] = {
    "gptq": Method(quantised.gptq(), _GPTQ),
    "gptq-head": Method(quantised.gptq(), _GPTQ | {"lm_head": True}, head=True),
    "gptq-8": Method(
        quantised.gptq(8, 64, symmetric=False, version=2),
        _GPTQ | {"bits": 8, "group_size": 64, "sym": False, "checkpoint_format": "gptq_v2"},
    ),
    "gptq-act-order": Method(quantised.gptq(act_order=True), _GPTQ | {"desc_act": True}),
    "gptq-orders": Method(
        quantised.gptq(act_order=True, alike=False), _GPTQ | {"desc_act": True}
    ),
    "awq": Method(
        quantised.awq(64),
        {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"},
    ),
    "pack": Method(
        quantised.pack_quantized(4, 128),
        _compressed("pack-quantized", num_bits=4, strategy="group", group_size=128),
    ),
    "pack-act-order": Method(
        quantised.pack_quantized(4, 32, act_order=True),
        _compressed("pack-quantized", num_bits=4, strategy="group", group_size=32,
                    actorder="group"),
    ),
    "pack-8": Method(
        quantised.pack_quantized(8, -1, symmetric=False),
        _compressed("pack-quantized", num_bits=8, strategy="channel", symmetric=False),
    ),
    "int8": Method(
        quantised.int_quantized(),
        _compressed("int-quantized", num_bits=8, strategy="channel"),
    ),
    "f8-channel": Method(
        quantised.float_quantized("channel", dtype=torch.bfloat16),
        _compressed("float-quantized", num_bits=8, strategy="channel", type="float"),
    ),
    "f8-tensor": Method(
        quantised.float_quantized("tensor"),
        _compressed("float-quantized", num_bits=8, strategy="tensor", type="float"),
    ),
    "fp8-block": Method(
        quantised.float_quantized("block", scale_name="weight_scale_inv"),
        {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3",
         "weight_block_size": [128, 128]},
    ),
    "nf4": Method(
        quantised.bnb_four_bits("nf4", nested=True),
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
         "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": "float16"},
    ),
    "fp4": Method(
        quantised.bnb_four_bits("fp4", 128),
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
    ),
    "bnb-int8": Method(
        quantised.bnb_int8, {"quant_method": "bitsandbytes", "load_in_8bit": True},
    ),
    "mxfp4": Method(
        quantised.mxfp4,
        {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
    ),
}  # fmt: skip

_LINEAR = re.compile(
    r"\.(layers|h)\..*(_proj|_proj_with_mqa|\.w[123]|query_key_value|dense\w*)\.weight$"
)


def save(family: str, method: str, folder: Path) -> tuple[Path, Path]:
    """The quantised model, and the plain one with the values that it means."""
    chosen = METHODS[method]
    config = {k: v for k, v in (_SIZES | FAMILIES[family]).items() if v is not None}
    plain, stored = folder / "plain", folder / "quantised"
    _random(family, config).save_pretrained(plain)
    tensors = load_file(plain / "model.safetensors")
    values, pieces = dict(tensors), dict[str, torch.Tensor]()
    for name, tensor in tensors.items():
        _quantise(chosen, method, name, tensor, values, pieces)
    save_file(values, plain / "model.safetensors", {"format": "pt"})
    stored.mkdir(parents=True)
    save_file(pieces, stored / "model.safetensors", {"format": "pt"})
    head = json.loads((plain / "config.json").read_text())
    head = {"architectures": head["architectures"], "model_type": family, **config}
    (plain / "config.json").write_text(json.dumps(head))
    (stored / "config.json").write_text(json.dumps(head | {"quantization_config": chosen.fields}))
    for target in (plain, stored):
        tiny.save_tokenizer(target)
    return stored, plain


def _quantise(
    chosen: Method, method: str, name: str, tensor: torch.Tensor,
    values: dict[str, torch.Tensor], pieces: dict[str, torch.Tensor],
) -> None:  # fmt: skip
    is_head = chosen.head and name == "lm_head.weight"
    if method == "mxfp4" and name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        made = chosen.quantise(tensor.transpose(1, 2).contiguous().numpy())
        values[name] = torch.from_numpy(made.values).transpose(1, 2).contiguous()
        pieces.update({f"{name}_{k}": v for k, v in made.pieces.items()})
    elif method != "mxfp4" and (_LINEAR.search(name) or is_head):
        made = chosen.quantise(tensor.numpy())
        values[name] = torch.from_numpy(made.values)
        module = name.removesuffix(".weight")
        pieces.update({f"{module}.{k}": v.contiguous() for k, v in made.pieces.items()})
    else:
        pieces[name] = tensor


def _random(family: str, config: dict[str, Any]) -> Any:
    seed = zlib.crc32(family.encode())
    with torch.random.fork_rng():  # what transformers starts with may be random: sinks
        torch.manual_seed(seed)
        made = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(family, **config), attn_implementation="eager", dtype=torch.float32
        ).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter += 0.25 * noise
            else:
                parameter.copy_(noise * (1.5 / parameter.shape[-1] ** 0.5))
    return made
