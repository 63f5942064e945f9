"""Configs that are refused, and the two spellings of rotary settings."""

from __future__ import annotations

from typing import Any

import pytest

from inferc.errors import CompileError
from inferc.frontend import capture_config
from inferc.frontend.config_checks import check_config
from tests import tiny

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
NESTED = {
    "full_attention": {"rope_type": "default", "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}


def check(**fields: Any) -> None:
    check_config({"model_type": "llama", **fields}, "config.json")


def refusal(**fields: Any) -> str:
    with pytest.raises(CompileError) as error:
        check(**fields)
    return str(error.value)


@pytest.mark.parametrize("name", tiny.CASES)
def test_all_tiny_configs_pass(name: str) -> None:
    check_config(tiny.config(name), "config.json")


def test_what_is_no_text_model() -> None:
    with pytest.raises(CompileError, match="has no model_type"):
        check_config({}, "config.json")
    assert "multimodal" in refusal(text_config={"model_type": "x"})
    assert "encoder-decoder" in refusal(is_encoder_decoder=True)


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_theta": 5e5},
        {"rope_parameters": YARN | {"rope_theta": 5e5}},
        {"rope_scaling": YARN, "rope_theta": 5e5},
        {"rope_scaling": {"type": "yarn", "factor": 2.0}},
        {"rope_scaling": {"type": "su", "short_factor": [1.0], "long_factor": [2.0]}},
        {"rope_scaling": {"type": "su", "rope_type": "longrope", "short_factor": [1.0],
                          "long_factor": [2.0]}},
        {"rope_scaling": None, "rope_parameters": None},
        {"rope_parameters": NESTED},
        {"rope_parameters": NESTED, "rope_theta": 1e6, "rope_local_base_freq": 1e4},
        {"rope_parameters": YARN | {"rope_theta": 5e5}, "rope_theta": 5e5, "rope_scaling": YARN},
    ],
)  # fmt: skip
def test_either_spelling_and_equal_ones(fields: dict[str, Any]) -> None:
    check(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "rope_theta": 5e5},
            "rope_theta is 500000.0 in the top level and 10000.0 in rope_parameters",
        ),
        (
            {"rope_parameters": YARN, "rope_scaling": YARN | {"factor": 8.0}},
            "factor is 8.0 in rope_scaling and 4.0 in rope_parameters",
        ),
        (
            {"rope_parameters": YARN, "rope_scaling": {"type": "linear", "factor": 4.0}},
            "rope_type is 'linear' in rope_scaling and 'yarn' in rope_parameters",
        ),
        (
            {"rope_parameters": NESTED, "rope_local_base_freq": 7.0},
            "rope_theta is 7.0 in rope_local_base_freq and 10000.0 in rope_parameters",
        ),
        (
            {"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2.0}},
            "rope_type 'yarn' and type 'linear'",
        ),
    ],
)
def test_contradictions_name_fields_and_values(fields: dict[str, Any], message: str) -> None:
    assert message in refusal(**fields)


def test_rope_types() -> None:
    assert "'dynamic'" in refusal(rope_scaling={"type": "dynamic", "factor": 2.0})
    unknown = refusal(rope_parameters={"rope_type": "spiral"})
    assert "unknown rope type 'spiral'; known: default, linear" in unknown
    nested = NESTED | {"full_attention": {"rope_type": "spiral"}}
    assert "rope_parameters['full_attention']" in refusal(rope_parameters=nested)
    assert "needs factor" in refusal(rope_scaling={"type": "linear"})
    assert "needs long_factor" in refusal(rope_scaling={"type": "su", "short_factor": [1.0]})
    extra = refusal(rope_scaling={"type": "linear", "factor": 2.0, "twist": 3})
    assert "does not know twist = 3" in extra


def built(name: str, **fields: Any) -> None:
    capture_config.build(tiny.config(name) | fields)


def test_unknown_model_type() -> None:
    with pytest.raises(CompileError, match=r"model_type 'llamba', which is no causal language"):
        built("llama", model_type="llamba")
    with pytest.raises(CompileError, match=r"\(auto_map\) is never run"):
        built("llama", model_type="llamba", auto_map={"AutoModel": "x.Y"})
    with pytest.raises(CompileError, match=r"LlamaForSequenceClassification.*LlamaForCausalLM"):
        built("llama", architectures=["LlamaForSequenceClassification"])


def test_fields_that_would_be_ignored() -> None:
    with pytest.raises(CompileError, match=r"embedding_multiplier = 12.0.*cannot be compiled"):
        built("llama", embedding_multiplier=12.0)
    with pytest.raises(CompileError, match=r"rope_theta = 10000\.0"):
        built("gpt2", rope_theta=10000.0)
    built("llama", embedding_multiplier=None, use_qk_norm=False)  # switched off
    built("llama", is_llama_config=True, torch_dtype="bfloat16", temperature=0.6)
    built("gemma2", hidden_act="gelu_pytorch_tanh")  # restates hidden_activation
    with pytest.raises(CompileError, match="hidden_act = 'relu'"):
        built("gemma2", hidden_act="relu")
    built("gemma3", sliding_window_pattern=6)  # read by the config class


def test_partial_rotary_factor_must_reach_the_frequencies() -> None:
    from inferc.frontend import capture_torch
    from inferc.frontend.capture_request import CaptureRequest

    config = tiny.config("llama") | {"partial_rotary_factor": 0.5}
    with pytest.raises(CompileError, match=r"partial_rotary_factor 0.5 for heads of 16"):
        capture_torch.capture(CaptureRequest(config))
