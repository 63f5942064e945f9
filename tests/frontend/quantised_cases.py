"""Stored weights of every quantisation method, and the config that goes with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from inferc.frontend.quantised_store import QuantisedWeights, gathered
from inferc.frontend.safetensors_store import open_safetensors
from tests import quantised
from tests.quantised import Stored

N, K = 48, 256
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True}
BNB8 = {"quant_method": "bitsandbytes", "load_in_8bit": True}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


def compressed(form: str, **weights: Any) -> dict[str, Any]:
    fields = {"num_bits": 4, "type": "int", "symmetric": True, **weights}
    group = {"targets": ["Linear"], "weights": fields, "input_activations": None}
    return {
        "quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"],
        "quantization_status": "compressed", "config_groups": {"group_0": group},
    }  # fmt: skip


def matrix(rows: int = N, columns: int = K, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([rows, columns, seed])
    return (rng.standard_normal((rows, columns)) * 0.1 + 0.02).astype(np.float32)


def opened(
    folder: Path, config: dict[str, Any], stored: Stored, module: str = "model.proj",
    separator: str = ".", **more: torch.Tensor,
) -> QuantisedWeights:  # fmt: skip
    tensors = {f"{module}{separator}{k}": v for k, v in stored.pieces.items()}
    save_file(tensors | more, folder / "model.safetensors")
    return gathered(open_safetensors(folder), config, "config.json")


def pack(bits: int, group: int, **more: Any) -> dict[str, Any]:
    size = {"strategy": "channel"} if group == -1 else {"strategy": "group", "group_size": group}
    return compressed("pack-quantized", **({"num_bits": bits} | size | more))


F16 = torch.float16
CASES: dict[str, tuple[str, dict[str, Any], quantised.Quantiser]] = {
    "gptq": ("u4_g32", GPTQ, quantised.gptq()),
    "gptq-64": ("u4_g64", GPTQ | {"group_size": 64}, quantised.gptq(group=64)),
    "gptq-128": ("u4_g128", GPTQ | {"group_size": 128}, quantised.gptq(group=128)),
    "gptq-row": ("u4_g128", GPTQ | {"group_size": -1}, quantised.gptq(group=-1)),
    "gptq-8": ("u8_g32", GPTQ | {"bits": 8}, quantised.gptq(8)),
    "gptq-asymmetric": (
        "u4_g32", GPTQ | {"sym": False, "checkpoint_format": "gptq"},
        quantised.gptq(symmetric=False),
    ),
    "gptq-v2": (
        "u4_g32", GPTQ | {"sym": False, "checkpoint_format": "gptq_v2"},
        quantised.gptq(symmetric=False, version=2),
    ),
    "gptq-8-v2": (
        "u8_g64",
        GPTQ | {"bits": 8, "group_size": 64, "sym": False, "checkpoint_format": "gptq_v2"},
        quantised.gptq(8, 64, symmetric=False, version=2),
    ),
    "gptq-act-order": ("u4_g32", GPTQ | {"desc_act": True}, quantised.gptq(act_order=True)),
    "gptq-8-act-order": (
        "u8_g128", GPTQ | {"bits": 8, "group_size": 128, "desc_act": True},
        quantised.gptq(8, 128, act_order=True),
    ),
    "gptq-bf16": ("u4b_g32", GPTQ, quantised.gptq(dtype=torch.bfloat16)),
    "awq": ("u4_g32", AWQ, quantised.awq()),
    "awq-128": ("u4_g128", AWQ | {"group_size": 128}, quantised.awq(128)),
    "awq-row": ("u4_g128", AWQ | {"group_size": -1}, quantised.awq(-1)),
    "pack": ("u4b_g32", pack(4, 32), quantised.pack_quantized()),
    "pack-128-f16": ("u4_g128", pack(4, 128), quantised.pack_quantized(4, 128, dtype=F16)),
    "pack-row": ("u4b_g128", pack(4, -1), quantised.pack_quantized(4, -1)),
    "pack-asymmetric": (
        "u4b_g64", pack(4, 64, symmetric=False), quantised.pack_quantized(4, 64, symmetric=False)
    ),
    "pack-8-asymmetric": (
        "u8b_g32", pack(8, 32, symmetric=False), quantised.pack_quantized(8, symmetric=False)
    ),
    "pack-8-row": ("u8b_g128", pack(8, -1), quantised.pack_quantized(8, -1)),
    "pack-group-order": (
        "u4b_g32", pack(4, 32, actorder="group"), quantised.pack_quantized(act_order=True)
    ),
    "pack-static-order": (
        "u4b_g32", pack(4, 32, actorder="static"), quantised.pack_quantized()
    ),
    "int8-channel": (
        "i8", compressed("int-quantized", num_bits=8, strategy="channel"),
        quantised.int_quantized(),
    ),
    "int8-channel-f32": (
        "i8", compressed("int-quantized", num_bits=8, strategy="channel"),
        quantised.int_quantized(dtype=torch.float32),
    ),
    "int8-tensor": (
        "i8", compressed("naive-quantized", num_bits=8, strategy="tensor"),
        quantised.int_quantized(0),
    ),
    "int8-group": (
        "u8b_g64", compressed("int-quantized", num_bits=8, strategy="group", group_size=64),
        quantised.int_quantized(64),
    ),
    "int8-asymmetric": (
        "u8b_g128",
        compressed("int-quantized", num_bits=8, strategy="channel", symmetric=False),
        quantised.int_quantized(symmetric=False),
    ),
    "f8-channel": (
        "f8e4m3", compressed("float-quantized", num_bits=8, type="float", strategy="channel"),
        quantised.float_quantized("channel", dtype=torch.bfloat16),
    ),
    "f8-tensor": (
        "f8e4m3", compressed("float-quantized", num_bits=8, type="float", strategy="tensor"),
        quantised.float_quantized("tensor"),
    ),
    "f8-block": (
        "f8_g128",
        compressed("float-quantized", num_bits=8, type="float", strategy="block",
                   block_structure=[128, 128]),
        quantised.float_quantized("block"),
    ),
    "fp8-block": (
        "f8_g128", FP8, quantised.float_quantized("block", scale_name="weight_scale_inv")
    ),
    "fp8-wide": (
        "f8_g128", FP8 | {"weight_block_size": [16, 256]},
        quantised.float_quantized("block", scale_name="weight_scale_inv", block=(16, 256)),
    ),
    "fp8-tensor": (
        "f8e4m3", FP8 | {"weight_block_size": None, "activation_scheme": "static"},
        quantised.float_quantized("tensor"),
    ),
    "fbgemm": (
        "f8e4m3", {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0},
        quantised.float_quantized("channel"),
    ),
    "nf4": ("nf4_g64", BNB, quantised.bnb_four_bits("nf4")),
    "nf4-nested": ("nf4_g64", BNB, quantised.bnb_four_bits("nf4", nested=True)),
    "fp4-128": ("fp4_g64", BNB, quantised.bnb_four_bits("fp4", 128)),
    "nf4-over-rows": ("nf4_g64", BNB, quantised.bnb_four_bits("nf4", 512)),
    "bnb-int8": ("i8", BNB8, quantised.bnb_int8),
}  # fmt: skip
