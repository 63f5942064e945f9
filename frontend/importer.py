"""From a path to a module over stored weights: the frontend's one entrance.

A directory with config.json is read as a Hugging Face model, a GGUF file as GGUF; both go through
the same capture. An ONNX file brings its own graph. All end in the same form.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from inferc.errors import CompileError, ToolchainError
from inferc.frontend import tokenizer
from inferc.frontend.capture import capture
from inferc.frontend.capture_request import CaptureFacts, CaptureRequest
from inferc.frontend.config_checks import check_config
from inferc.frontend.declared_weights import (
    NO_TOKENIZER,
    declared_dtype,
    declared_weights,
)
from inferc.frontend.gguf import is_gguf, open_gguf
from inferc.frontend.hf import open_hf, read_config
from inferc.frontend.live_options import LiveOptions
from inferc.frontend.model_source import ModelSource
from inferc.frontend.onnx_source import import_onnx, onnx_file_of
from inferc.frontend.param_binding import bind_weights
from inferc.frontend.quantised_store import split_config
from inferc.frontend.tokenizer import TokenizerFiles
from inferc.frontend.weight_binding import bind
from inferc.frontend.weights import StoredTensor, WeightStore
from inferc.ir.core import Module
from inferc.ir.types import TensorType


@dataclass(frozen=True)
class ImportOptions:
    """Choices that change the imported graph.

    Attributes:
        context_tokens: Longest sequence to serve; None for the model's own limit. Models with
            longrope use their short factors if this is within the original context, else the long
            ones, for all requests alike.
        cache_folder: Where captures are kept; None for the default.
    """

    context_tokens: int | None = None
    cache_folder: Path | None = None


@dataclass(frozen=True)
class ModelFacts:
    """What reports and the manifest say of the model."""

    name: str
    architecture: str
    vocab_size: int
    hidden_size: int
    layers: int
    context_tokens: int
    parameters: int
    parameter_bytes: int


@dataclass(frozen=True)
class ImportedModel:
    """A model ready for the passes.

    Attributes:
        module: `@forward(ids, positions) -> logits`, parameters in their stored types.
        tensors: The stored tensor of each parameter of the module, by the name in `param @name`.
        store: Where these tensors lie.
        tokenizer: Files and special tokens.
        facts: Sizes and names.
        config: The config as transformers spells it (for verification against the source).
        notes: What the user should know.
    """

    module: Module
    tensors: Mapping[str, StoredTensor]
    store: WeightStore
    tokenizer: TokenizerFiles
    facts: ModelFacts
    config: Mapping[str, Any]
    notes: tuple[str, ...] = ()


def import_model(path: Path, options: ImportOptions | None = None) -> ImportedModel:
    """Import a Hugging Face directory, a GGUF file or an ONNX model. Raises CompileError."""
    options = options or ImportOptions()
    path = model_path(Path(path))
    if path.suffix == ".onnx":
        return _onnx(path, options)
    source, tokens = _open_gguf(path) if path.is_file() else _open_directory(path)
    request = CaptureRequest(
        source.config, options.context_tokens, source.checkpoint_keys, source.frequency_divisors
    )
    captured = capture(request, options.cache_folder)
    bound = bind_weights(captured.module, source.bind(captured.facts), source.store)
    facts = _facts(source.name, captured.facts, bound.module, bound.tensors)
    _check_vocabulary(path, tokens, facts)
    return ImportedModel(
        bound.module, bound.tensors, source.store, tokens, facts, source.config, source.notes
    )


def import_config(file: Path, options: ImportOptions, dtype: str | None = None) -> ImportedModel:
    """Import a config.json without weights: their types are what the config declares.

    Everything but values is known of such a model: it can be planned, not compiled.

    Args:
        file: A config.json, under any name.
        options: As for `import_model`.
        dtype: Type of all weights instead of the config's; its quantisation is then left out.

    Raises:
        CompileError: As for `import_model`.
    """
    config, quantisation = split_config(read_config(file))
    check_config(config, str(file))
    captured = capture(CaptureRequest(config, options.context_tokens), options.cache_folder)
    type_ = dtype or declared_dtype(file, config)
    declared = declared_weights(file, captured, type_, None if dtype else quantisation)
    bindings = bind(captured.facts.parameters, declared.bindings, declared.store, known_unused=())
    bound = bind_weights(captured.module, bindings, declared.store)
    name = file.resolve().parent.name if file.name == "config.json" else file.stem
    facts = _facts(name, captured.facts, bound.module, bound.tensors)
    return ImportedModel(bound.module, bound.tensors, declared.store, NO_TOKENIZER, facts, config)


def import_module(module: Any, options: LiveOptions) -> ImportedModel:
    """Import a torch module of this process. Raises CompileError or ToolchainError."""
    if importlib.util.find_spec("torch") is None:
        raise ToolchainError(
            "Compiling needs torch, which is not installed. Install the compiler's packages with: "
            "pip install 'inferc[compile]'"
        )
    import torch  # here, because models on disk are read without it

    if not isinstance(module, torch.nn.Module):
        raise CompileError(
            f"Expected a path or a torch.nn.Module to compile, found {type(module).__name__}."
        )
    from inferc.frontend.live import import_live

    model = import_live(module, options)
    captured = CaptureFacts(model.name, model.context_tokens, model.hidden_size, model.layers)
    facts = _facts(model.name, captured, model.module, model.tensors)
    _check_vocabulary(Path(model.name), model.tokenizer, facts)
    return ImportedModel(model.module, model.tensors, model.store, model.tokenizer, facts, {})


def _check_vocabulary(path: Path, tokens: TokenizerFiles, facts: ModelFacts) -> None:
    if tokens.vocab_size > facts.vocab_size:
        raise CompileError(
            f"The tokenizer of {path} has {tokens.vocab_size} tokens, but the model's vocabulary "
            f"has {facts.vocab_size}: they do not belong together."
        )


def _onnx(path: Path, options: ImportOptions) -> ImportedModel:
    model = import_onnx(path, options.context_tokens)
    captured = CaptureFacts(
        model.architecture, model.context_tokens, model.hidden_size, model.layers
    )
    facts = _facts(model.name, captured, model.module, model.tensors)
    _check_vocabulary(path, model.tokenizer, facts)
    return ImportedModel(
        model.module, model.tensors, model.store, model.tokenizer, facts, model.config
    )


def model_path(path: Path) -> Path:
    """The GGUF file, the ONNX file or the model directory that `path` means."""
    if not path.exists():
        raise CompileError(
            f"{path} does not exist. Expected a Hugging Face model directory, a GGUF file or an "
            "ONNX file."
        )
    if path.is_file():
        if path.suffix == ".onnx":
            return path
        if path.name == "config.json" or path.suffix == ".safetensors":
            return path.parent
        if not is_gguf(path):
            raise CompileError(
                f"{path} is not a GGUF file. Expected a GGUF or ONNX file, or a Hugging Face model "
                "directory with config.json and safetensors."
            )
        return path
    onnx = onnx_file_of(path)
    if onnx is not None and not any(path.glob("*.safetensors")):
        return onnx
    if (path / "config.json").is_file():
        return path
    ggufs = sorted(path.glob("*.gguf"))
    if len(ggufs) == 1:
        return ggufs[0]
    found = f"{len(ggufs)} GGUF files (name one of them)" if ggufs else "neither"
    raise CompileError(
        f"{path} is no model directory: expected config.json or one GGUF file in it, found {found}."
    )


def _open_directory(path: Path) -> tuple[ModelSource, TokenizerFiles]:
    source = open_hf(path)
    return source, tokenizer.from_directory(path)


def _open_gguf(path: Path) -> tuple[ModelSource, TokenizerFiles]:
    model = open_gguf(path)
    check_config(model.config, str(path))
    divisors = model.inv_freq_divisors
    source = ModelSource(
        name=path.stem,
        config=model.config,
        store=model.store,
        checkpoint_keys=(),
        frequency_divisors=() if divisors is None else tuple(float(d) for d in divisors),
        bind=lambda facts: bind(
            facts.parameters, model.bindings, model.store, known_unused=model.known_unused
        ),
    )
    return source, tokenizer.from_gguf(model.file)


def _facts(
    name: str, captured: CaptureFacts, module: Module, tensors: Mapping[str, StoredTensor]
) -> ModelFacts:
    logits = module.funcs["forward"].results[0].type
    assert isinstance(logits, TensorType) and isinstance(logits.shape[-1], int)
    return ModelFacts(
        name=name,
        architecture=captured.architecture,
        vocab_size=logits.shape[-1],
        hidden_size=captured.hidden_size,
        layers=captured.layers,
        context_tokens=captured.context_tokens,
        parameters=sum(prod(t.shape) for t in tensors.values()),
        parameter_bytes=sum(t.nbytes for t in tensors.values()),
    )
