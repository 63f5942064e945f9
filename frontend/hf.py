"""A Hugging Face directory: config.json and safetensors, bound to parameters by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from inferc.errors import CompileError
from inferc.frontend.capture_request import CaptureFacts, Made
from inferc.frontend.config_checks import check_config, with_new_rope_names
from inferc.frontend.model_source import ModelSource
from inferc.frontend.quantised_store import gathered, split_config
from inferc.frontend.quantised_tensor import QuantisedTensor
from inferc.frontend.safetensors_store import open_safetensors
from inferc.frontend.weight_binding import BUFFERS_BESIDE_WEIGHTS, bind
from inferc.frontend.weight_transforms import (
    Binding,
    Rows,
    Stack,
    Transform,
    Transpose,
)
from inferc.frontend.weights import WeightStore


def open_hf(folder: Path) -> ModelSource:
    """Open a directory with config.json. Raises CompileError."""
    where = str(folder / "config.json")
    stored, quantisation = split_config(read_config(folder / "config.json"))
    config = with_new_rope_names(stored)
    check_config(config, where)
    weights = gathered(open_safetensors(folder), quantisation, where)
    return ModelSource(
        name=folder.resolve().name,
        config=config,
        store=weights.store,
        checkpoint_keys=tuple(sorted(weights.store.tensors)),
        frequency_divisors=(),
        bind=lambda facts: bind_checkpoint(facts, weights.store, weights.ignored),
        notes=weights.notes,
    )


def read_config(file: Path) -> dict[str, Any]:
    """config.json as a dict. Raises CompileError."""
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CompileError(
            f"{file} does not exist; a model directory needs a config.json."
        ) from None
    except ValueError as error:
        raise CompileError(f"{file} is not valid JSON ({error}); get the file again.") from error
    if not isinstance(config, dict):
        raise CompileError(f"{file} should hold a JSON object, found {type(config).__name__}.")
    return config


def bind_checkpoint(
    facts: CaptureFacts, store: WeightStore, ignored: tuple[str, ...] = ()
) -> dict[str, Binding]:
    """The stored tensor of each parameter.

    A tied parameter is bound once. A file of a tied model may also hold the other copy: it must
    equal the first, else the file and the config contradict each other.
    """
    stored = {parameter: key for key, parameter in facts.names.items()}
    names, duplicates = dict(facts.names), dict[str, str]()
    for alias, canonical in facts.aliases.items():
        if alias not in stored:
            continue
        if canonical in stored:
            duplicates[stored[alias]] = stored[canonical]
        else:  # the file keeps the tied tensor under its other name
            names[stored[alias]] = canonical
    _explain_missing_head(facts, stored)
    return bind(
        facts.parameters,
        (
            *(_named(store, *pair) for pair in names.items()),
            *(_made(p, made) for p, made in facts.made.items()),
        ),
        store,
        known_unused=(*BUFFERS_BESIDE_WEIGHTS, *facts.ignored, *ignored),
        duplicates=duplicates,
    )


def _named(store: WeightStore, stored: str, parameter: str) -> Binding:
    """The binding of a parameter that is one stored tensor."""
    tensor = store.tensors.get(stored)
    turned = isinstance(tensor, QuantisedTensor) and tensor.transposed
    return Binding(parameter, (stored,), (Transpose(),) if turned else ())


def _made(parameter: str, made: Made) -> Binding:
    """The binding of a parameter that is made of several tensors, or of part of one."""
    transforms: list[Transform] = [Rows(*made.rows)] if made.rows is not None else []
    if made.stack:
        transforms.append(Stack(made.stack))
    return Binding(parameter, made.sources, tuple(transforms), made.axis)


def _explain_missing_head(facts: CaptureFacts, stored: dict[str, str]) -> None:
    """The commonest missing tensor has a cause that deserves its own message."""
    missing = [p for p in facts.parameters if p not in stored and p not in facts.made]
    if missing == ["lm_head.weight"] and "lm_head.weight" not in facts.aliases:
        raise CompileError(
            "The weights hold no lm_head.weight, and config.json does not say that it is tied to "
            "the embedding. If it is, set tie_word_embeddings to true in config.json; otherwise "
            "the checkpoint is incomplete."
        )
