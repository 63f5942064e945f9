"""The configs of large models as published: taken as they stand, and written down right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from inferc.errors import CompileError
from inferc.frontend.capture_config import build

FOLDER = Path(__file__).parents[1] / "data" / "configs"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))


def config(name: str) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    fields.pop("quantization_config", None)
    return fields


@pytest.mark.parametrize("name", NAMES)
def test_published_fields_are_known(name: str) -> None:
    assert build(config(name)).num_hidden_layers == config(name)["num_hidden_layers"]


@pytest.mark.parametrize("name", ["deepseek-v3", "gpt-oss-120b"])
def test_values_are_those_that_transformers_has(name: str) -> None:
    """Both config classes have the sizes of the published model as their defaults."""
    ours = build(config(name)).to_dict()
    theirs = CONFIG_MAPPING[ours["model_type"]]().to_dict()
    theirs["rope_parameters"] = theirs["rope_parameters"] or {}
    named = set(config(name)) & set(theirs) - {"architectures", "transformers_version"}
    different = {field for field in named if ours[field] != theirs[field]}
    # What describes the published files rather than the architecture.
    known = {"max_position_embeddings", "eos_token_id", "pad_token_id", "router_aux_loss_coef"}
    assert different <= known | {"dtype", "torch_dtype"}, {f: theirs[f] for f in different}


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("deepseek-v3", "scoring_func", "softmax"),
        ("deepseek-v3", "topk_method", "greedy"),
        ("deepseek-v3", "moe_layer_freq", 2),
        ("gpt-oss-120b", "experts_per_token", 8),
        ("gpt-oss-120b", "initial_context_length", 8192),
        ("llama-3.1-70b", "scoring_func", "sigmoid"),
    ],
)
def test_other_values_are_refused(name: str, field: str, value: object) -> None:
    with pytest.raises(CompileError, match=f"do not know: {field} = {value!r}"):
        build(config(name) | {field: value})
