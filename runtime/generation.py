"""Sampling defaults that come with a model (`generation.json`, keys as in transformers)."""

import json
from pathlib import Path
from typing import Any

from inferc.errors import ArtifactError, RequestError
from inferc.runtime.request import SamplingParams

_TAKEN = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def load_defaults(folder: Path) -> SamplingParams:
    """The artifact's defaults: greedy unless the model says `do_sample`, as in transformers."""
    path = folder / "generation.json"
    if not path.is_file():
        return SamplingParams()
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict):
            raise ValueError(f"expected an object, found {type(data).__name__}")
        return sampling_defaults(data)
    except (ValueError, TypeError, RequestError) as error:
        raise ArtifactError(f"{path}: not usable as sampling defaults ({error}).") from error


def sampling_defaults(data: dict[str, Any]) -> SamplingParams:
    """Fields that are set, with `top_k` 0 meaning none."""
    given = {name: data[name] for name in _TAKEN if data.get(name) is not None}
    if given.get("top_k") == 0:
        del given["top_k"]
    if data.get("do_sample"):
        given.setdefault("temperature", 1.0)
    else:
        given["temperature"] = 0.0
    return SamplingParams().with_options(**given)
