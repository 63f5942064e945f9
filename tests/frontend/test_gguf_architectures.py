"""Tiny models through GGUF and back: the same parameters, the same logits, or a plain refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from inferc.errors import CompileError
from inferc.frontend.gguf import open_gguf
from inferc.frontend.weight_binding import bind
from tests.frontend import gguf_models
from tests.frontend.gguf_cases import CASES


@pytest.mark.parametrize("name", CASES)
def test_round_trip(name: str, tmp_path: Path) -> None:
    original = gguf_models.model(name)
    model = gguf_models.rebuilt(open_gguf(gguf_models.write(tmp_path / "m.gguf", name)))
    for (parameter, ours), (_, theirs) in zip(
        model.named_parameters(), original.named_parameters(), strict=True
    ):
        # 1 + w - 1 of gemma's norms loses the last bit.
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-7, msg=parameter)
    ids = torch.randint(0, 96, (1, 100), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ours, theirs = model(ids).logits, original(ids).logits
    assert (ours - theirs).norm() / theirs.norm() < 1e-5


def config_of(tmp_path: Path, case: str, **changes: Any) -> dict[str, object]:
    return open_gguf(gguf_models.write(tmp_path / "m.gguf", case, **changes)).config


def refusal(tmp_path: Path, case: str, **changes: Any) -> str:
    with pytest.raises(CompileError) as info:
        config_of(tmp_path, case, **changes)
    return str(info.value)


def test_unknown_key_is_refused_by_name(tmp_path: Path) -> None:
    message = refusal(tmp_path, "llama", **{"attention.temperature_scale": 0.1})
    assert "llama.attention.temperature_scale = 0.1" in message


def test_experts_are_refused(tmp_path: Path) -> None:
    assert "gemma2.expert_count = 8" in refusal(tmp_path, "gemma2", expert_count=8)


def test_experts_that_are_not_stacked_are_named(tmp_path: Path) -> None:
    """Older files of Mixtral hold each expert by itself."""
    model = open_gguf(gguf_models.write(tmp_path / "m.gguf", "llama", expert_count=3,
                                        expert_used_count=2))  # fmt: skip
    shapes = {"model.layers.0.mlp.experts.down_proj": (3, 64, 96)}
    with pytest.raises(
        CompileError, match=r"without a stored tensor: .*experts.down_proj.*blk.\*.ffn_down"
    ):
        bind(shapes, model.bindings, model.store, known_unused=model.known_unused)


def test_neutral_values_are_accepted(tmp_path: Path) -> None:
    config_of(tmp_path, "llama", expert_count=0, **{"attention.causal": True})


def test_missing_key_is_named(tmp_path: Path) -> None:
    message = refusal(tmp_path, "llama", **{"attention.layer_norm_rms_epsilon": None})
    assert "lacks the metadata key llama.attention.layer_norm_rms_epsilon" in message


def test_unknown_architecture_names_the_known(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_models.write(path, "llama").read_bytes().replace(b"llama", b"rwkv9"))
    with pytest.raises(CompileError, match=r"architecture rwkv9.*supported: llama, qwen2"):
        open_gguf(path)


def test_unknown_rope_scaling_names_the_known(tmp_path: Path) -> None:
    message = refusal(tmp_path, "llama", **{"rope.scaling.type": "dynamic"})
    assert "'dynamic'; supported: none, linear, yarn, longrope" in message


def test_factor_without_type_is_linear(tmp_path: Path) -> None:
    config = config_of(tmp_path, "llama", **{"rope.scaling.factor": 2.0})
    assert config["rope_parameters"] == {
        "rope_type": "linear",
        "rope_theta": 10000.0,
        "factor": 2.0,
    }


def test_partial_rotation_is_refused_where_unknown(tmp_path: Path) -> None:
    assert "rotates 8 of 16" in refusal(tmp_path, "llama", **{"rope.dimension_count": 8})


def test_heads_that_differ_by_layer_are_refused(tmp_path: Path) -> None:
    message = refusal(tmp_path, "llama", **{"attention.head_count_kv": [2, 2, 1, 2]})
    assert "attention.head_count_kv" in message and "differs between layers" in message


def test_equal_heads_by_layer_are_one_number(tmp_path: Path) -> None:
    config = config_of(tmp_path, "llama", **{"attention.head_count_kv": [2, 2, 2, 2]})
    assert config["num_key_value_heads"] == 2


def test_sliding_layers_from_the_pattern(tmp_path: Path) -> None:
    config = config_of(tmp_path, "gemma3", **{"attention.sliding_window_pattern": 2})
    assert config["layer_types"] == ["sliding_attention", "full_attention"] * 2


def test_granite_without_scale_divides_by_root_of_head_size(tmp_path: Path) -> None:
    config = config_of(tmp_path, "granite", **{"attention.scale": None})
    assert config["attention_multiplier"] == 0.25


def test_gemma_27b_scales_by_width_of_heads(tmp_path: Path) -> None:
    config = config_of(tmp_path, "gemma2", block_count=46)
    assert config["query_pre_attn_scalar"] == 16


def test_head_equal_to_embedding_is_tied(tmp_path: Path) -> None:
    embedding = gguf_models.tensors("llama")["token_embd.weight"]
    path = gguf_models.write(tmp_path / "m.gguf", "llama", **{"output.weight": embedding})
    found = open_gguf(path)
    assert found.config["tie_word_embeddings"] is True
    gguf_models.rebuilt(found)


def test_missing_and_extra_tensors_are_named_together(tmp_path: Path) -> None:
    path = gguf_models.write(
        tmp_path / "m.gguf",
        "llama",
        **{"blk.1.ffn_up.weight": None, "blk.2.surplus.weight": np.zeros((4, 8), np.float32)},
    )
    with pytest.raises(CompileError) as info:
        gguf_models.rebuilt(open_gguf(path))
    assert "without a stored tensor: model.layers.1.mlp.up_proj.weight [96, 64]" in str(info.value)
    assert "no parameter uses: blk.2.surplus.weight [4, 8]" in str(info.value)


def test_wrong_shape_is_named(tmp_path: Path) -> None:
    path = gguf_models.write(
        tmp_path / "m.gguf", "llama", **{"blk.3.ffn_up.weight": np.zeros((95, 64), np.float32)}
    )
    with pytest.raises(CompileError, match=r"layers.3.mlp.up_proj.weight wants \[96, 64\], .*95"):
        gguf_models.rebuilt(open_gguf(path))
