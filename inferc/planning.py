"""What the compiler would make of a model: the report of an artifact, without the artifact.

report = inferc.plan("config.json", kv_dtype="bf16")
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from inferc import description
from inferc.errors import CompileError
from inferc.frontend.importer import ImportedModel, ImportOptions, import_config, import_model
from inferc.lowering import lower
from inferc.options import (
    CompileOptions,
    Event,
    Progress,
    for_model,
    resolve_options,
    silent,
)

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.pth", "*.gguf", "*.onnx")


def plan(
    source: Path | str,
    *,
    dtype: str | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> dict[str, Any]:
    """The report of a model: kernels with flops and bytes, KV cache, memory, passes.

    Nothing is compiled, packed or written, and weights are not read.

    Args:
        source: a config.json (any name that ends in .json), whose weights need not exist; or
            what `inferc.compile` takes.
        dtype: type of the weights of a config.json, instead of its own: f32, bf16, f16, or a
            block format such as q4_k, which linear layers and experts then have.
        progress: told what is being done.
        **options: fields of `CompileOptions`.

    Raises:
        InfercError: with the reason, and what to do about it.
    """
    tell, chosen = progress or silent, resolve_options(options)
    for select in chosen.selects():
        select.options()
    tell(Event("import", str(source)))
    model = _import(Path(source), dtype, chosen)
    for note in model.notes:
        tell(Event("note", note))
    chosen = for_model(chosen, model.module)
    lowered = lower(model, chosen, tell)
    tell(Event("report", model.facts.name))
    return description.report(model, chosen, lowered, description.manifest(model, lowered))


def _import(source: Path, dtype: str | None, options: CompileOptions) -> ImportedModel:
    chosen = ImportOptions(options.context_tokens)
    config = _lone_config(source)
    if config is not None:
        return import_config(config, chosen, dtype)
    if dtype is not None:
        raise CompileError(
            f"A type of weights is for a config.json without them; {source} has weights, and their "
            "types are theirs. Give the path of its config.json to plan without them."
        )
    return import_model(source, chosen)


def _lone_config(source: Path) -> Path | None:
    """The config to be planned by itself: a JSON file, or one in a folder without weights."""
    if source.is_file():
        return source if source.suffix == ".json" else None
    config = source / "config.json"
    found = any(any(source.glob(pattern)) for pattern in _WEIGHTS)
    return config if config.is_file() and not found else None
