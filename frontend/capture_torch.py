"""The capture itself: a request in, IR text and facts out. Runs in the capture process."""

from __future__ import annotations

import logging
import warnings
from typing import Any

from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from inferc.errors import CompileError
from inferc.frontend import capture_config, capture_graph, capture_model
from inferc.frontend.capture_request import CaptureFacts, CaptureRequest
from inferc.ir.text import print_module


def capture(request: CaptureRequest) -> tuple[str, CaptureFacts]:
    """IR text with locations, and what the binding of weights has to know."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    config = capture_config.build(request.config)
    model = capture_model.build_model(config)
    capture_model.resolve_longrope(model, request.context_tokens)
    if request.frequency_divisors:
        capture_model.divide_frequencies(model, request.frequency_divisors)
    names, architecture = _names(model, request.checkpoint_keys), type(model).__name__
    ignored = _ignored(model)
    classes = {path: type(m).__name__ for path, m in model.named_modules()}
    program = capture_model.export(model, request.context_tokens)
    graphed = capture_graph.to_module(program, classes)
    facts = CaptureFacts(architecture, graphed.aliases, names, ignored)
    return print_module(graphed.module, locations=True), facts


def _names(model: PreTrainedModel, keys: tuple[str, ...]) -> dict[str, str]:
    """Parameter name of each checkpoint key, by transformers' own conversion mapping."""
    transforms = get_model_conversion_mapping(model)
    renamings = [t for t in transforms if isinstance(t, WeightRenaming)]
    converters = [t for t in transforms if isinstance(t, WeightConverter)]
    state: dict[str, Any] = model.state_dict()
    out = {}
    for key in keys:
        name, pattern = rename_source_key(
            key, renamings, converters, model.base_model_prefix, state
        )
        if pattern is not None:
            raise CompileError(
                f"the checkpoint stores {key} in a form that has to be merged into {name}; only "
                "checkpoints whose tensors are the model's parameters are supported."
            )
        out[key] = name
    return out


def _ignored(model: PreTrainedModel) -> tuple[str, ...]:
    """Patterns of checkpoint keys that transformers skips, and buffers that are computed instead."""
    patterns = {str(p) for p in model._keys_to_ignore_on_load_unexpected or ()}
    if any(name.endswith("inv_freq") for name, _ in model.named_buffers()):
        patterns.add(r"(^|\.)rotary_emb\.inv_freq$")
    return tuple(sorted(patterns))
