"""From an ONNX file, or a directory that holds one, to a module over stored weights.

Beside the graph may lie config.json (context length, special tokens) and tokenizer.json; without a
tokenizer the artifact takes token ids only.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferc.errors import CompileError, ToolchainError
from inferc.frontend import tokenizer
from inferc.frontend.hf import read_config
from inferc.frontend.param_binding import bind_weights
from inferc.frontend.tokens import GenerationDefaults, SpecialTokens, TokenizerFiles
from inferc.frontend.weight_transforms import Binding
from inferc.frontend.weights import StoredTensor, WeightStore
from inferc.ir.core import Func, Module
from inferc.ir.dims import Symbol
from inferc.ir.types import TensorType

FILE_NAMES = ("model.onnx", "onnx/model.onnx")
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
_ATTENTION = ("core.softmax", "nn.attention")


@dataclass(frozen=True)
class OnnxModel:
    """An ONNX decoder, bound.

    Attributes:
        name: Short name for reports.
        module: `@forward(ids, positions) -> logits`, parameters in their stored types.
        tensors: The stored tensor of each parameter.
        store: All of them.
        tokenizer: Files and special tokens; without `tokenizer_json` where there is none.
        config: config.json, empty where there is none.
        architecture: Name of the architecture, as far as the files say.
        hidden_size: Columns of the embedding.
        layers: Number of attention layers.
        context_tokens: Longest sequence.
    """

    name: str
    module: Module
    tensors: Mapping[str, StoredTensor]
    store: WeightStore
    tokenizer: TokenizerFiles
    config: Mapping[str, Any]
    architecture: str
    hidden_size: int
    layers: int
    context_tokens: int


def onnx_file_of(folder: Path) -> Path | None:
    """The model file of a directory, if it holds one."""
    for name in FILE_NAMES:
        if (folder / name).is_file():
            return folder / name
    found = sorted(folder.glob("*.onnx"))
    return found[0] if len(found) == 1 else None


def import_onnx(path: Path, context_tokens: int | None) -> OnnxModel:
    """Translate and bind. Raises CompileError or ToolchainError."""
    if importlib.util.find_spec("onnx") is None:
        raise ToolchainError(
            "Reading ONNX models needs the package onnx, which is not installed. Install the "
            "compiler's packages with: pip install 'inferc[compile]'"
        )
    from inferc.frontend.onnx_model import decoder
    from inferc.frontend.onnx_proto import open_onnx

    file = open_onnx(path)
    made = decoder(file)
    folder = path.parent.parent if path.parent.name == "onnx" else path.parent
    config = config_beside(folder)
    func, tensors = made.translated.func, made.translated.tensors
    context = _context(path, config, made.context_tokens, context_tokens)
    func.symbols["S"] = Symbol("S", 1, context)
    store = WeightStore(path, tensors)
    module = Module()
    module.add(func)
    bindings = {name: Binding(name, (name,)) for name in tensors}
    bound = bind_weights(module, bindings, store)
    architectures = config.get("architectures") or ["ONNX graph"]
    return OnnxModel(
        name=folder.resolve().name if path.stem == "model" else path.stem,
        module=bound.module,
        tensors=bound.tensors,
        store=store,
        tokenizer=tokens_of(folder, config),
        config=config,
        architecture=str(architectures[0]),
        hidden_size=_hidden_size(func),
        layers=sum(op.name in _ATTENTION for op in func.ops),
        context_tokens=context,
    )


def _context(path: Path, config: Mapping[str, Any], tables: int | None, wanted: int | None) -> int:
    """The longest sequence: as asked for, else by config.json, else by the model's tables."""
    stated = next((config[k] for k in _CONTEXT_KEYS if isinstance(config.get(k), int)), None)
    limits = [n for n in (stated, tables) if n is not None]
    limit = min(limits, default=None)
    if wanted is None and limit is None:
        raise CompileError(
            f"{path} does not say how long a sequence the model takes. Put its config.json beside "
            "it, or give the context length as an option (context_tokens)."
        )
    if wanted is not None and limit is not None and wanted > limit:
        raise CompileError(
            f"A context of {wanted} tokens was asked for, but {path} is made for at most {limit}."
        )
    return wanted if wanted is not None else int(limit or 0)


def config_beside(folder: Path) -> dict[str, Any]:
    """config.json, or what ONNX Runtime GenAI's own config says in its place."""
    if (folder / "config.json").is_file():
        return read_config(folder / "config.json")
    if not (folder / "genai_config.json").is_file():
        return {}
    model = read_config(folder / "genai_config.json").get("model", {})
    config = {k: model[k] for k in ("eos_token_id", "bos_token_id", "pad_token_id") if k in model}
    config["max_position_embeddings"] = model.get("context_length")
    decoder = model.get("decoder", {})
    config["head_dim"] = decoder.get("head_size")
    config["sliding_window"] = decoder.get("sliding_window", {}).get("window_size")
    if "type" in model:
        config["architectures"] = [str(model["type"])]
    return config


def tokens_of(folder: Path, config: Mapping[str, Any]) -> TokenizerFiles:
    """The tokenizer beside a model; where there is none, what config.json says of tokens."""
    if (folder / "tokenizer.json").is_file():
        return tokenizer.from_directory(folder)
    return without_tokenizer(config)


def without_tokenizer(config: Mapping[str, Any]) -> TokenizerFiles:
    """Facts of tokens without a tokenizer."""
    eos = config.get("eos_token_id")
    ids = tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,)
    bos, pad = (config.get(f"{name}_token_id") for name in ("bos", "pad"))
    special = SpecialTokens(ids, bos, pad, False)
    return TokenizerFiles(None, None, special, GenerationDefaults(), 0)


def _hidden_size(func: Func) -> int:
    """Columns of the first table that token ids are looked up in."""
    for op in func.ops:
        if op.name == "core.embedding":
            type_ = op.result.type
            assert isinstance(type_, TensorType)
            size = type_.shape[-1]
            if isinstance(size, int):
                return size
    raise CompileError("the graph looks up no token: it is no language model.")
