"""The two real GGUF files: read fast, and understood as transformers and the gguf package do."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from inferc.frontend.gguf import open_gguf
from inferc.frontend.gguf_file import read_gguf
from inferc.frontend.weight_binding import bind
from tests.models import gemma3_gguf, smollm2_gguf

FILES: list[Callable[[], Path]] = [smollm2_gguf, gemma3_gguf]


@pytest.mark.parametrize("file", FILES)
def test_reading_is_fast(file: Callable[[], Path]) -> None:
    """A few calls a string: what an element costs in the gguf package takes it 10 s for Gemma's."""
    path, calls = file(), 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        read = read_gguf(path)
    finally:
        sys.setprofile(None)
    elements = sum(len(v) for v in read.metadata.values() if isinstance(v, list | tuple))
    assert elements > 90_000
    assert calls < 4 * elements


# What transformers 5.24's load_gguf_checkpoint returns for Gemma, which takes it 10 seconds.
GEMMA3_CONFIG = {
    "tie_word_embeddings": True,
    "model_type": "gemma3_text",
    "_model_name_or_path": "Gemma 3 270m",
    "max_position_embeddings": 32768,
    "hidden_size": 640,
    "num_hidden_layers": 18,
    "intermediate_size": 2048,
    "num_attention_heads": 4,
    "rms_norm_eps": 9.999999974752427e-07,
    "head_dim": 256,
    "rope_theta": 1000000.0,
    "sliding_window": 512,
    "num_key_value_heads": 1,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "unk_token_id": 3,
    "pad_token_id": 0,
    "vocab_size": 262144,
}


def check_config(path: Path, expected: dict[str, object]) -> None:
    found = open_gguf(path).config
    rope = found["rope_parameters"]
    assert isinstance(rope, dict)
    comparable = found | {"rope_theta": rope.get("full_attention", rope)["rope_theta"]}
    for name, value in expected.items():
        if name in ("_model_name_or_path", "unk_token_id"):
            continue
        if isinstance(value, float):
            assert np.float32(comparable[name]) == np.float32(value)
        else:
            assert comparable[name] == value, name


def test_config_is_that_of_transformers() -> None:
    path = smollm2_gguf()
    check_config(path, load_gguf_checkpoint(str(path), return_tensors=False)["config"])
    check_config(gemma3_gguf(), GEMMA3_CONFIG)


def test_gemma_layers_and_local_rope() -> None:
    config = open_gguf(gemma3_gguf()).config
    assert Counter(config["layer_types"]) == {"sliding_attention": 15, "full_attention": 3}
    assert config["layer_types"][5] == "full_attention"
    assert config["rope_parameters"]["sliding_attention"]["rope_theta"] == 10000.0
    assert config["query_pre_attn_scalar"] == 256


@pytest.mark.parametrize("file", FILES)
def test_every_parameter_and_tensor_is_bound(file: Callable[[], Path]) -> None:
    found = open_gguf(file())
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**found.config))
    shapes = {name: tuple(value.shape) for name, value in model.named_parameters()}
    bound = bind(shapes, found.bindings, found.store, known_unused=found.known_unused)
    assert bound.keys() == shapes.keys()
    used = {source for binding in bound.values() for source in binding.sources}
    assert used == found.store.tensors.keys()


def test_stored_values() -> None:
    tensors = read_gguf(smollm2_gguf()).tensors
    for tensor in gguf.GGUFReader(smollm2_gguf()).tensors:
        found = tensors[tensor.name]
        assert found.dtype == tensor.tensor_type.name.lower()
        np.testing.assert_array_equal(found.read().view(np.uint8), tensor.data.view(np.uint8))


def test_mixed_block_types_dequantise() -> None:
    file = read_gguf(gemma3_gguf())
    assert Counter(tensor.dtype for tensor in file.tensors.values()) == {
        "f32": 109, "q5_0": 81, "q4_k": 27, "q8_0": 10, "q6_k": 9,
    }  # fmt: skip
    for tensor in file.tensors.values():
        if tensor.name.startswith("blk.0.") and tensor.is_blocks:
            kind = gguf.GGMLQuantizationType[tensor.dtype.upper()]
            expected = gguf.dequantize(np.ascontiguousarray(tensor.read()), kind)
            np.testing.assert_array_equal(tensor.read_float32(), expected)
