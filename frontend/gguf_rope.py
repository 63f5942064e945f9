"""`rope.*` keys and factor tensors of a GGUF file, as transformers' `rope_parameters`."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from inferc.errors import CompileError
from inferc.frontend.gguf_architectures import Rope
from inferc.frontend.gguf_file import GgufFile
from inferc.frontend.gguf_keys import Keys

RopeParameters = dict[str, object]

_DEFAULT_THETA = 10000.0  # llama.cpp's, for files without the key
_TYPES = ("none", "linear", "yarn", "longrope")


def rope_config(file: GgufFile, keys: Keys, rope: Rope, head_size: int) -> dict[str, object]:
    """The config entries that describe rope."""
    theta = keys.number("rope.freq_base", _DEFAULT_THETA)
    context = keys.integer("context_length")
    scaling = _scaling(file, keys, context)
    rotated = keys.integer("rope.dimension_count", head_size)
    if rotated != head_size and not rope.partial:
        raise CompileError(
            f"{file.path} rotates {rotated} of {head_size} dimensions of each head, which "
            f"{file.architecture} models do not support."
        )
    parameters: RopeParameters = {"rope_theta": theta, **scaling}
    if rope.partial:
        parameters["partial_rotary_factor"] = rotated / head_size
    config: dict[str, object] = {"rope_parameters": parameters}
    if rope.two_tables:
        local = keys.number("rope.freq_base_swa", rope.local_theta or theta)
        config["rope_parameters"] = {
            "full_attention": parameters,
            "sliding_attention": {"rope_type": "default", "rope_theta": local},
        }
    elif "rope.freq_base_swa" in keys and keys.number("rope.freq_base_swa") != theta:
        raise CompileError(
            f"{file.path} has another rope base for sliding layers, which {file.architecture} "
            "models do not support."
        )
    if "original_max_position_embeddings" in parameters:
        config["original_max_position_embeddings"] = parameters["original_max_position_embeddings"]
    return config


def inv_freq_divisors(file: GgufFile, rope: Rope | None) -> NDArray[np.float32] | None:
    """Divisors of the rope frequencies: how GGUF stores Llama 3's scaling."""
    if "rope_freqs.weight" not in file.tensors:
        return None
    if rope is None or rope.two_tables:
        raise CompileError(
            f"{file.path} holds rope_freqs.weight, which {file.architecture} models do not use."
        )
    return file.tensors["rope_freqs.weight"].read_float32()


def _scaling(file: GgufFile, keys: Keys, context: int) -> RopeParameters:
    kind = keys.raw("rope.scaling.type")
    factor = _factor(keys)
    original = keys.integer("rope.scaling.original_context_length", context)
    if "rope_factors_long.weight" in file.tensors:
        return _longrope(file, keys, context, original)
    if kind is None:
        kind = "linear" if factor != 1 else "none"  # llama.cpp's default type is linear
    if kind not in _TYPES:
        raise CompileError(
            f"{file.path} has the rope scaling {kind!r}; supported: {', '.join(_TYPES)}."
        )
    if kind == "longrope":
        raise CompileError(f"{file.path} has longrope scaling but no rope_factors_long.weight.")
    if kind == "none" or factor == 1:
        return {"rope_type": "default"}
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    return _yarn(file, keys, factor, original)


def _factor(keys: Keys) -> float:
    """`rope.scaling.factor`, or its older name; 0 means that there is no scaling."""
    return keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0)) or 1.0


def _yarn(file: GgufFile, keys: Keys, factor: float, original: int) -> RopeParameters:
    if keys.number("rope.scaling.yarn_ext_factor", 1.0) != 1.0:
        raise CompileError(f"{file.path}: rope.scaling.yarn_ext_factor other than 1 is unknown.")
    parameters: RopeParameters = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original,
    }
    names = {
        "rope.scaling.yarn_attn_factor": "attention_factor",
        "rope.scaling.yarn_beta_fast": "beta_fast",
        "rope.scaling.yarn_beta_slow": "beta_slow",
    }
    return parameters | _present(keys, names)


def _longrope(file: GgufFile, keys: Keys, context: int, original: int) -> RopeParameters:
    if "rope_factors_short.weight" not in file.tensors:
        raise CompileError(f"{file.path} has rope_factors_long.weight but no short factors.")
    parameters: RopeParameters = {
        "rope_type": "longrope",
        "long_factor": _factors(file, "rope_factors_long.weight"),
        "short_factor": _factors(file, "rope_factors_short.weight"),
        "factor": context / original,
        "original_max_position_embeddings": original,
    }
    return parameters | _present(keys, {"rope.scaling.attn_factor": "attention_factor"})


def _factors(file: GgufFile, name: str) -> list[float]:
    return [float(str(value)) for value in file.tensors[name].read_float32()]


def _present(keys: Keys, names: Mapping[str, str]) -> RopeParameters:
    return {name: keys.number(key) for key, name in names.items() if key in keys}
