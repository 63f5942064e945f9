"""Models whose CUDA kernels are read: shapes as published, planned without weights."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.gpu.workloads import MODELS as SHAPES
from inferc.codegen.library import Generated
from inferc.frontend.importer import ImportOptions, import_config
from inferc.lowering import lower
from inferc.options import resolve_options, silent


@dataclass(frozen=True)
class Model:
    """A shape of `make gpu`, and the type of its weights: of all, or of layers and experts."""

    shape: str
    dtype: str


MODELS = {
    "llama-3.1-8b-bf16": Model("llama-3.1-8b", "bf16"),
    "llama-3.1-8b-int4": Model("llama-3.1-8b", "u4b_g128"),  # as GPTQ and AWQ store it
    "llama-3.1-8b-q4_k": Model("llama-3.1-8b", "q4_k"),
    "qwen3-30b-a3b-bf16": Model("qwen3-30b-a3b", "bf16"),
}


def generated(name: str, target: str, **options: Any) -> Generated:
    """What the compiler generates for a model, with fields of CompileOptions."""
    model = MODELS[name]
    chosen = resolve_options({"target": target, **options})
    with tempfile.TemporaryDirectory(prefix="cuda-model-") as folder:
        path = Path(folder) / f"{name}.json"
        path.write_text(json.dumps(SHAPES[model.shape].config()))
        imported = import_config(path, ImportOptions(chosen.context_tokens), model.dtype)
    return lower(imported, chosen, silent).generated
