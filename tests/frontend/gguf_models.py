"""Tiny random models as GGUF files, written the way llama.cpp's converter writes them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from inferc.frontend.gguf import GgufModel
from inferc.frontend.weight_binding import bind
from tests.frontend.gguf_cases import CASES, LAYERS


@cache
def model(name: str) -> PreTrainedModel:
    """The transformers model of a case, with every parameter random."""
    torch.manual_seed(0)
    built = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(CASES[name].model_type, **CASES[name].full_config),
        attn_implementation="eager",
        dtype=torch.float32,
    ).eval()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.2 if parameter.dim() > 1 else 0.5))
    return built


def tensors(name: str) -> dict[str, np.ndarray]:
    """The tensors of a case as the converter stores them."""
    case = CASES[name]
    architecture = {v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}[case.architecture]
    names = gguf.get_tensor_name_map(architecture, LAYERS)
    stored = {tensor: np.array(values, np.float32) for tensor, values in case.extra.items()}
    for parameter, value in model(name).named_parameters():
        if ".experts." in parameter:
            stored |= _experts(parameter, value.detach().numpy())
            continue
        base, suffix = parameter.rsplit(".", 1)
        array = case.change(parameter, value.detach().numpy())
        stored[f"{names.get_name(base)}.{suffix}"] = np.ascontiguousarray(array)
    return _fused(stored) if case.fuse_qkv else stored


def _experts(parameter: str, value: np.ndarray) -> dict[str, np.ndarray]:
    """Stacks of all experts, gate and up apart."""
    layer = parameter.split(".")[2]
    if parameter.endswith("down_proj"):
        parts = {"down": value}
    else:
        parts = dict(zip(("gate", "up"), np.split(value, 2, axis=1), strict=True))
    return {f"blk.{layer}.ffn_{n}_exps.weight": np.ascontiguousarray(a) for n, a in parts.items()}


def _fused(stored: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    result = {}
    for name, array in stored.items():
        match = re.fullmatch(r"(blk\.\d+\.attn)_([qkv])\.(weight|bias)", name)
        if not match:
            result[name] = array
        elif match[2] == "q":
            parts = [stored[f"{match[1]}_{part}.{match[3]}"] for part in "qkv"]
            result[f"{match[1]}_qkv.{match[3]}"] = np.concatenate(parts)
    return result


def write(path: Path, name: str, **changes: Any) -> Path:
    """Write a case as a GGUF file; `changes` replace or (None) remove keys and tensors."""
    case = CASES[name]
    keys, arrays = {**case.keys}, tensors(name)
    for key, value in changes.items():
        (arrays if isinstance(value, np.ndarray) or key in arrays else keys)[key] = value
    writer = gguf.GGUFWriter(path, case.architecture)
    for key, value in keys.items():
        if value is not None:
            _add(writer, f"{case.architecture}.{key}", value)
    for tensor, array in arrays.items():
        if array is not None:
            writer.add_tensor(tensor, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def rebuilt(found: GgufModel) -> PreTrainedModel:
    """The transformers model of what inferc read of a file."""
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**found.config), attn_implementation="eager", dtype=torch.float32
    ).eval()
    shapes = {name: tuple(value.shape) for name, value in model.named_parameters()}
    bound = bind(shapes, found.bindings, found.store, known_unused=found.known_unused)
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(torch.from_numpy(bound[name].evaluate(found.store)))
        for name, buffer in model.named_buffers():
            if name.endswith("inv_freq") and found.inv_freq_divisors is not None:
                buffer.div_(torch.from_numpy(found.inv_freq_divisors))
    return model
