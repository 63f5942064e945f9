"""The engines, each imported only in its own environment.

An engine has `prepare()` (imports), `load()`, `vocab`, `version()` and

    run(prompts, new) -> (first_s, rest_s, tokens, rest_tokens)

greedy, ignoring the end of sequence; see `worker` for the meaning.
"""

from __future__ import annotations

import importlib
from typing import Any

MODULES = {
    "inferc": "ours",
    "llama.cpp": "llama",
    "ik_llama.cpp": "ik_llama",
    "openvino": "openvino",
    "ort": "ort",
    "vllm": "vllm",
    "fake": "fake",
}


def make(name: str, model: str, threads: int, options: dict[str, str]) -> Any:
    """The engine `name`, not loaded yet."""
    module = importlib.import_module(f"{__name__}.{MODULES[name]}")
    return module.Engine(model, threads, options)
