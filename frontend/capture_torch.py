"""The capture itself: a request in, IR text and facts out. Runs in the capture process."""

from __future__ import annotations

import logging
import warnings

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from inferc.errors import CompileError
from inferc.frontend import capture_config, capture_graph, capture_model
from inferc.frontend.capture_names import parameter_names
from inferc.frontend.capture_request import CaptureFacts, CaptureRequest
from inferc.ir.text import print_module


def capture(request: CaptureRequest) -> tuple[str, CaptureFacts]:
    """IR text with locations, and what the binding of weights has to know."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    config = capture_config.build(request.config)
    context_tokens = _context(config, request.context_tokens)
    model = capture_model.build_model(config)
    capture_model.resolve_longrope(model, context_tokens)
    capture_config.check_partial_rotary(model)
    if request.frequency_divisors:
        capture_model.divide_frequencies(model, request.frequency_divisors)
    names, ignored = parameter_names(model, request.checkpoint_keys), _ignored(model)
    parameters = {
        name: tuple(p.shape) for name, p in [*model.named_parameters(), *_stored_buffers(model)]
    }
    classes = {path: type(m).__name__ for path, m in model.named_modules()}
    program = capture_model.export(model, context_tokens)
    graphed = capture_graph.to_module(program, classes)
    facts = CaptureFacts(
        architecture=type(model).__name__,
        context_tokens=context_tokens,
        hidden_size=config.hidden_size,
        layers=config.num_hidden_layers,
        parameters=parameters,
        aliases=graphed.aliases,
        names=names.plain,
        made=names.made,
        ignored=ignored,
    )
    return print_module(graphed.module, locations=True), facts


def _context(config: PreTrainedConfig, wanted: int | None) -> int:
    limit = capture_config.context_limit(config)
    if wanted is None and limit is None:
        raise CompileError(
            "config.json does not say how long a sequence the model takes "
            "(max_position_embeddings); give the context length as an option."
        )
    if wanted is not None and limit is not None and wanted > limit:
        raise CompileError(
            f"a context of {wanted} tokens was asked for, but the model is made for at most "
            f"{limit} (max_position_embeddings in config.json)."
        )
    return wanted if wanted is not None else int(limit or 0)


def _stored_buffers(model: PreTrainedModel) -> list[tuple[str, torch.Tensor]]:
    """Buffers that checkpoints hold."""
    stored = set(model.state_dict())
    return [(name, buffer) for name, buffer in model.named_buffers() if name in stored]


def _ignored(model: PreTrainedModel) -> tuple[str, ...]:
    """Patterns of checkpoint keys that transformers skips, and of buffers computed instead."""
    patterns = {str(p) for p in model._keys_to_ignore_on_load_unexpected or ()}
    if any(name.endswith("inv_freq") for name, _ in model.named_buffers()):
        patterns.add(r"(^|\.)rotary_emb\.inv_freq$")
    return tuple(sorted(patterns))
