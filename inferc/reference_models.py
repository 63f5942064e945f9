"""Load the source model with transformers, as independently of the compiler as the file allows.

A Hugging Face directory is read by transformers alone. For a GGUF file transformers' own loader is
preferred; where it does not know the architecture, or would leave out tensors, the parameters are
made by inferc's binding of the dequantised tensors. Imported by the reference process only.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging as transformers_logging

from inferc.errors import InfercError
from inferc.frontend.config_checks import layer_entries, with_new_rope_names
from inferc.frontend.gguf import GgufModel, open_gguf
from inferc.frontend.hf import open_hf, read_config
from inferc.frontend.importer import model_path
from inferc.frontend.quantised_tensor import QuantisedTensor
from inferc.frontend.weight_binding import bind
from inferc.frontend.weights import StoredTensor
from inferc.reference import ReferenceRequest


@dataclass(frozen=True)
class Loaded:
    """A model, who read it, and what the reader of a result should know."""

    model: PreTrainedModel
    loader: str
    notes: tuple[str, ...] = ()


def load(request: ReferenceRequest) -> Loaded:
    """The source model in the requested precision, eager attention."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("gguf").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    path, dtype = model_path(Path(request.source)), getattr(torch, request.precision)
    if path.is_file():
        return _load_gguf(path, dtype, request.context_tokens)
    config = _config(path)
    notes = _fix_longrope(config, request.context_tokens)
    if getattr(config, "quantization_config", None) is not None:
        del config.quantization_config
        return _load_quantised(path, config, dtype, notes)
    return Loaded(_pretrained(path, config, dtype), "transformers", notes)


def _load_quantised(
    folder: Path, config: PreTrainedConfig, dtype: torch.dtype, notes: tuple[str, ...]
) -> Loaded:
    """The unquantised model with the values that the stored codes stand for.

    The loaders of most quantisation methods need packages or devices of their own, and round what
    they compute to 16 bits.
    """
    source = open_hf(folder)
    values = {name: torch.from_numpy(_values(t)) for name, t in source.store.tensors.items()}
    model = _pretrained(None, config, dtype, state_dict=values)
    note = "The quantised weights were dequantised by inferc itself."
    return Loaded(model, "transformers", (*notes, note))


def _values(tensor: StoredTensor) -> np.ndarray:
    quantised = isinstance(tensor, QuantisedTensor)
    values = tensor.read_parameter() if quantised else tensor.read_float32()
    tensor.release()
    return values


def _config(folder: Path) -> PreTrainedConfig:
    """The config; rope types under old names, which transformers no longer reads, are renamed."""
    stored = read_config(folder / "config.json")
    renamed = with_new_rope_names(stored)
    if renamed == stored:
        return AutoConfig.from_pretrained(folder)
    return AutoConfig.for_model(renamed.pop("model_type"), **renamed)


def _pretrained(
    folder: Path | None, config: PreTrainedConfig, dtype: torch.dtype, **options: Any
) -> PreTrainedModel:
    """`from_pretrained`, refusing parameters that it would have filled at random."""
    kind = AutoModelForCausalLM if folder is not None else _model_class(config)
    model, info = kind.from_pretrained(
        folder,
        config=config,
        dtype=dtype,
        attn_implementation="eager",
        local_files_only=True,
        output_loading_info=True,
        **options,
    )
    absent = sorted({*info["missing_keys"], *(str(k) for k in info["mismatched_keys"])})
    if absent:
        raise InfercError(
            f"transformers finds no weights for {', '.join(absent[:5])} in {folder}, so there is"
            " no reference to compare with."
        )
    return model.eval().requires_grad_(False)  # type: ignore[no-any-return]


def _model_class(config: PreTrainedConfig) -> Any:
    """The class that AutoModelForCausalLM takes for a config; it takes no weights without files."""
    return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]


def _load_gguf(path: Path, dtype: torch.dtype, context_tokens: int | None) -> Loaded:
    found = open_gguf(path)
    config = AutoConfig.for_model(**found.config)
    notes = _fix_longrope(config, context_tokens)
    reason = _why_not_by_transformers(found)
    if reason is None:
        notes += _differences(path, found.config)
        return Loaded(
            _pretrained(path.parent, config, dtype, gguf_file=path.name), "transformers", notes
        )
    note = f"The tensors of the GGUF file were assigned by inferc itself: {reason}."
    return Loaded(_bound(found, config).to(dtype), "inferc", (*notes, note))


def _why_not_by_transformers(found: GgufModel) -> str | None:
    """Why transformers cannot read this GGUF file in full; None if it can."""
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    architecture = found.file.architecture
    if architecture not in GGUF_SUPPORTED_ARCHITECTURES:
        return f"transformers does not read GGUF files of {architecture}"
    used = {source for binding in found.bindings for source in binding.sources}
    left = sorted(found.store.tensors.keys() - used)
    if left:
        return f"transformers leaves out {', '.join(left[:3])}"
    if any(len(b.transforms) > 1 for b in found.bindings):  # q, k, v in one tensor
        return "transformers does not split fused projections"
    return None


def _differences(path: Path, ours: Mapping[str, Any]) -> tuple[str, ...]:
    """Where transformers reads the metadata otherwise; the reference then uses inferc's reading."""
    theirs = AutoConfig.from_pretrained(path.parent, gguf_file=path.name).to_dict()
    wanted = AutoConfig.for_model(**ours).to_dict()
    special = {"bos_token_id", "eos_token_id", "pad_token_id", "model_type"}
    differing = sorted(
        k for k in ours if k not in special and not _equal(wanted.get(k), theirs.get(k))
    )
    if not differing:
        return ()
    values = ", ".join(f"{k} = {theirs.get(k)!r} (inferc: {wanted.get(k)!r})" for k in differing)
    return (
        "transformers reads the GGUF metadata otherwise, and the reference uses inferc's reading:"
        f" {values}.",
    )


def _equal(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        return ours.keys() == theirs.keys() and all(_equal(ours[k], theirs[k]) for k in ours)
    if isinstance(ours, float) and isinstance(theirs, int | float):
        return bool(np.float32(ours) == np.float32(theirs))
    return bool(ours == theirs)


def _bound(found: GgufModel, config: PreTrainedConfig) -> PreTrainedModel:
    """The model in float32, each parameter made from the dequantised tensors."""
    model = AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", dtype=torch.float32
    )
    shapes = {name: tuple(value.shape) for name, value in model.named_parameters()}
    bound = bind(shapes, found.bindings, found.store, known_unused=found.known_unused)
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(torch.from_numpy(bound[name].evaluate(found.store)))
            for source in bound[name].sources:
                found.store[source].release()
        if found.inv_freq_divisors is not None:
            for name, buffer in model.named_buffers():
                if name.endswith("inv_freq"):
                    buffer.div_(torch.from_numpy(found.inv_freq_divisors))
    return model.eval().requires_grad_(False)  # type: ignore[no-any-return]


def _fix_longrope(config: PreTrainedConfig, context_tokens: int | None) -> tuple[str, ...]:
    """Where transformers switches longrope factors by the batch, an artifact has one set."""
    rope = getattr(config, "rope_parameters", None) or {}
    fixed = [entry for entry in layer_entries(rope).values() if _is_longrope(entry)]
    for entry in fixed:
        original = entry.get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", config.max_position_embeddings
        )
        longest = context_tokens or config.max_position_embeddings
        kept, replaced = ("long_factor", "short_factor")[:: 1 if longest > original else -1]
        assert isinstance(entry, dict)
        entry[replaced] = entry[kept]
    if not fixed:
        return ()
    return (f"longrope: {kept} for all lengths, as in the artifact.",)


def _is_longrope(entry: Mapping[str, Any]) -> bool:
    return entry.get("rope_type") == "longrope"
