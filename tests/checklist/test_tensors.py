"""Tensors that a file has and a config does not mention, and the reverse (lines 2, 4, 8, 9, 10)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from inferc.errors import CompileError
from inferc.frontend import capture_child, capture_config
from inferc.frontend.config_checks import check_config
from inferc.frontend.importer import ImportedModel, ImportOptions, import_model
from tests import tiny
from tests.frontend.captured import relative_error, run_forward, warm

Tensors = dict[str, np.ndarray]
UP = "model.layers.0.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("captures")


@pytest.fixture
def imported(tmp_path: Path, captures: Path) -> Callable[..., ImportedModel]:
    """Import a tiny model whose config and tensors have been changed."""

    def load(name: str, change: Callable[[Tensors], Any] | None = None, **config: Any) -> Any:
        folder = tiny.save(name, tmp_path / "model")
        if change is not None:
            tensors = load_file(folder / "model.safetensors")
            change(tensors)
            save_file(tensors, folder / "model.safetensors")
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | config))
        check_config(json.loads(file.read_text()), "config.json")
        warm(folder, None, captures)
        return import_model(folder, ImportOptions(cache_folder=captures))

    return load


def refusal(load: Callable[..., ImportedModel], *args: Any, **kwargs: Any) -> str:
    with pytest.raises(CompileError) as error:
        load(*args, **kwargs)
    return str(error.value)


# -- biases (line 4)
def test_biases_that_the_config_does_not_mention(imported: Callable[..., ImportedModel]) -> None:
    def add(tensors: Tensors) -> None:
        for layer in range(2):
            path = f"model.layers.{layer}"
            tensors[f"{path}.self_attn.q_proj.bias"] = np.ones(64, np.float32)
            tensors[f"{path}.mlp.up_proj.bias"] = np.ones(96, np.float32)

    message = refusal(imported, "llama", add)
    assert "no parameter uses: model.layers.*.mlp.up_proj.bias [96] (* = 0-1)" in message
    assert "model.layers.*.self_attn.q_proj.bias [64] (* = 0-1)" in message


@pytest.mark.parametrize(
    ("field", "tensor"),
    [("attention_bias", "self_attn.q_proj.bias [64]"), ("mlp_bias", "mlp.up_proj.bias [96]")],
)
def test_biases_that_the_file_does_not_hold(
    field: str, tensor: str, imported: Callable[..., ImportedModel]
) -> None:
    message = refusal(imported, "llama", **{field: True})
    assert "without a stored tensor: " in message and f"model.layers.*.{tensor}" in message


def test_a_flag_that_is_null() -> None:
    """`attention_bias: null` is neither on nor off: the field is named."""
    with pytest.raises(Exception, match="attention_bias") as error:
        capture_config.build(tiny.config("qwen3") | {"attention_bias": None})
    assert "Field 'attention_bias' expected bool" in capture_child.describe(error.value)


# -- heads (line 2)
def test_heads_given_layer_by_layer() -> None:
    with pytest.raises(Exception, match="num_key_value_heads") as error:
        capture_config.build(tiny.config("llama") | {"num_key_value_heads": [2, 1]})
    assert "'num_key_value_heads' with value [2, 1]" in capture_child.describe(error.value)


# -- the head (line 8)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("stored", [True, False])
def test_tied_or_not_by_stored_or_not(
    tied: bool, stored: bool, imported: Callable[..., ImportedModel]
) -> None:
    """All four combinations of the flag and of a head in the file."""
    name = "llama-tied" if tied else "llama"

    def change(tensors: Tensors) -> None:
        if tied and stored:
            tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
        elif not tied and not stored:
            del tensors["lm_head.weight"]

    if not tied and not stored:
        assert "no lm_head.weight" in refusal(imported, name, change)
        return
    model = imported(name, change)
    assert ("lm_head.weight" in model.tensors) == (not tied)
    ids = tiny.ids(name, 1, 9)
    found = run_forward(
        model.module.funcs["forward"], lambda p, _: np.asarray(model.tensors[p].read()), ids
    )
    assert relative_error(found, tiny.logits(name, ids)) < 1e-5


def test_flag_in_text_config() -> None:
    """Where the flag lies deeper, nothing is guessed from the top level's default."""
    config = tiny.config("llama") | {"text_config": {"tie_word_embeddings": True}}
    with pytest.raises(CompileError, match="it has a text_config"):
        check_config(config, "config.json")


# -- the vocabulary (line 9)
@pytest.mark.parametrize("size", [-1, 0, "32000", 1.5])
def test_impossible_vocabulary(size: object) -> None:
    with pytest.raises(CompileError, match=r"vocab_size .*positive number.*found"):
        check_config(tiny.config("llama") | {"vocab_size": size}, "config.json")


def test_vocabulary_larger_than_the_embedding(imported: Callable[..., ImportedModel]) -> None:
    message = refusal(imported, "llama", vocab_size=400)
    assert "model.embed_tokens.weight wants [400, 64]" in message


# -- what tensors are made of (line 10)
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros(0, np.float32), f"{UP} wants [96, 64], {UP} gives [0]"),
        (np.zeros((96, 64), ml_dtypes.float8_e4m3fn), f"{UP} (f8_e4m3 in model.safetensors)"),
        (np.zeros((96, 64), ml_dtypes.float8_e5m2), f"{UP} (f8_e5m2 in model.safetensors)"),
        (np.zeros((96, 64), np.float64), f"{UP} (f64 in model.safetensors)"),
    ],
)
def test_types_and_sizes_of_weights(
    value: np.ndarray, message: str, imported: Callable[..., ImportedModel]
) -> None:
    """Tensors without elements, and floats that say nothing without their scales."""
    assert message in refusal(imported, "llama", lambda t: t.update({UP: value}))


def test_a_surplus_tensor_without_elements(imported: Callable[..., ImportedModel]) -> None:
    message = refusal(imported, "llama", lambda t: t.update(extra=np.zeros(0, np.float32)))
    assert "no parameter uses: extra [0]" in message
