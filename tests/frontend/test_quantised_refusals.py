"""Quantised checkpoints that are refused: by field, by tensor, with what to do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from inferc.errors import CompileError
from inferc.frontend.quantised_tensor import QuantisedTensor
from tests import quantised
from tests.frontend.quantised_cases import (
    AWQ,
    BNB,
    BNB8,
    CASES,
    FP8,
    GPTQ,
    K,
    N,
    compressed,
    matrix,
    opened,
    pack,
)
from tests.quantised import Stored


def refusal(folder: Path, config: dict[str, Any], stored: Stored, **more: torch.Tensor) -> str:
    with pytest.raises(CompileError) as error:
        opened(folder, config, stored, **more).store["model.proj.weight"].read()
    return str(error.value)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"quant_method": "quanto"}, r"quantised by quanto; supported: gptq, awq"),
        ({"bits": 4}, r"quantised by nothing known"),
        (GPTQ | {"bits": 3}, r"quantization_config.bits is 3; expected 4 or 8"),
        (GPTQ | {"group_size": 16}, r"group_size is 16"),
        (GPTQ | {"sym": False}, r"checkpoint_format is None.*less one"),
        (GPTQ | {"checkpoint_format": "marlin"}, r"checkpoint_format is 'marlin'"),
        (GPTQ | {"is_marlin_format": True}, r"is_marlin_format is True"),
        (GPTQ | {"dynamic": {"+:.*": {"bits": 8}}}, r"dynamic is"),
        (GPTQ | {"rotation": "hadamard"}, r"not known for gptq: rotation = 'hadamard'"),
        (AWQ | {"version": "gemv"}, r"version is 'gemv'; expected 'gemm'"),
        (AWQ | {"zero_point": False}, r"zero_point is False"),
        (pack(4, 32, actorder="magic"), r"actorder is 'magic'"),
        (pack(4, 32, dynamic=True), r"weights.dynamic is True"),
        (pack(4, 32, strategy="tensor_group"), r"strategy is 'tensor_group'"),
        (pack(4, 32, secret=1), r"weights.secret = 1"),
        (pack(4, 32) | {"format": "nvfp4-pack-quantized"}, r"format is 'nvfp4-pack-quantized'"),
        (pack(4, 32) | {"kv_cache_scheme": {"num_bits": 8}}, r"kv_cache_scheme is"),
        (pack(4, 32) | {"transform_config": {"config_groups": {}, "x": 1}}, r"transform_config"),
        (pack(4, 32) | {"sparsity_config": {"format": "sparse-24-bitmask"}}, r"sparsity_config"),
        (pack(4, 32) | {"quantization_status": "calibration"}, r"quantization_status"),
        (pack(4, 32) | {"config_groups": {}}, r"no entry of config_groups names it"),
        (pack(4, 32) | {"ignore": ["re:.*proj"]}, r"model.proj is stored.*ignore names it"),
        (FP8 | {"fmt": "e5m2"}, r"fmt is 'e5m2'"),
        (pack(4, 32) | {"ignore": "lm_head"}, r"ignore is 'lm_head'; expected a list"),
        (pack(4, 32) | {"ignore": ["re:*("]}, r"ignore is .*nothing to repeat"),
        (pack(4, 32) | {"config_groups": [1]}, r"config_groups should be a JSON object"),
        (pack(4, 32) | {"config_groups": {"g": None}}, r"config_groups.g should be a JSON object"),
        (pack(4, "32", strategy=None), r"group_size is '32'; expected a number"),
        (FP8 | {"weight_block_size": 128}, r"weight_block_size is 128"),
        (BNB | {"other": 1}, r"not known for bitsandbytes: other = 1"),
    ],
)  # fmt: skip
def test_config_is_refused_by_name(config: dict[str, Any], words: str, tmp_path: Path) -> None:
    method = config.get("quant_method")
    stored = (
        quantised.awq() if method == "awq"
        else quantised.pack_quantized() if method == "compressed-tensors" else quantised.gptq()
    )(matrix())  # fmt: skip
    assert re.search(words, refusal(tmp_path, config, stored))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bits": 8}, ("qweight", "expected", "[32, 48]", "[64, 48]")),
        ({"group_size": 64}, ("scales", "[4, 48]", "[8, 48]")),
        ({"desc_act": True, "group_size": 128}, ("scales", "[2, 48]")),
        ({"checkpoint_format": "gptq_v2"}, ("qzeros", "sym", "should be 8", "found 7")),
    ],
)
def test_config_against_tensors(
    change: dict[str, Any], words: tuple[str, ...], tmp_path: Path
) -> None:
    message = refusal(tmp_path, GPTQ | change, quantised.gptq()(matrix()))
    assert "model.proj." in message
    for word in words:
        assert word in message


def test_missing_piece(tmp_path: Path) -> None:
    stored = quantised.gptq()(matrix())
    del stored.pieces["qzeros"]
    assert "model.proj.qzeros is not in the weights" in refusal(tmp_path, GPTQ, stored)


def test_act_order_needs_an_order(tmp_path: Path) -> None:
    stored = quantised.gptq()(matrix())
    del stored.pieces["g_idx"]
    assert opened(tmp_path, GPTQ, stored).store["model.proj.weight"].dtype == "u4_g32"
    assert "model.proj.g_idx" in refusal(tmp_path, GPTQ | {"desc_act": True}, stored)


def test_unequal_groups(tmp_path: Path) -> None:
    stored = quantised.gptq()(matrix())
    stored.pieces["g_idx"][0] = 3
    assert "model.proj.g_idx should give each of 8 groups 32" in refusal(tmp_path, GPTQ, stored)


def test_ambiguous_zero_points(tmp_path: Path) -> None:
    stored = quantised.gptq(symmetric=False)(matrix())
    stored.pieces["qzeros"] |= 15
    config = GPTQ | {"sym": False, "checkpoint_format": "gptq"}
    assert "Convert the checkpoint to gptq_v2" in refusal(tmp_path, config, stored)


def test_scales_that_16_bits_do_not_hold(tmp_path: Path) -> None:
    stored = quantised.gptq(dtype=torch.float32)(matrix())
    assert "neither float16 nor bfloat16" in refusal(tmp_path, GPTQ, stored)
    stored = quantised.gptq()(matrix())
    stored.pieces["scales"] = stored.pieces["scales"].float()
    tensor = opened(tmp_path, GPTQ, stored).store["model.proj.weight"]
    np.testing.assert_array_equal(tensor.read_float32(), stored.values)


def test_zero_points_of_symmetric_codes(tmp_path: Path) -> None:
    stored = quantised.int_quantized()(matrix())
    stored.pieces["weight_zero_point"] = torch.zeros(N, 1, dtype=torch.int8)
    config = compressed("int-quantized", num_bits=8, strategy="channel")
    assert opened(tmp_path, config, stored).store["model.proj.weight"].dtype == "i8"
    stored.pieces["weight_zero_point"][3] = 1
    assert "weight_zero_point" in refusal(tmp_path, config, stored)


@pytest.mark.parametrize(
    ("suffix", "value", "words"),
    [
        ("weight.quant_map", torch.zeros(16), "not the table of nf4"),
        ("weight.absmax", torch.zeros(3), r"weight.absmax: expected shape [192]"),
        ("weight", torch.zeros(8, 1, dtype=torch.uint8), "expected 6144 bytes"),
    ],
)
def test_damaged_bnb(suffix: str, value: torch.Tensor, words: str, tmp_path: Path) -> None:
    stored = quantised.bnb_four_bits("nf4")(matrix())
    stored.pieces[suffix] = value
    assert words in refusal(tmp_path, BNB, stored)


def test_other_layout_of_int8(tmp_path: Path) -> None:
    stored = quantised.bnb_int8(matrix())
    stored.pieces["weight_format"] += 2
    assert "weight_format is 2; expected 0" in refusal(tmp_path, BNB8, stored)


def test_narrow_f8_blocks(tmp_path: Path) -> None:
    quantise = quantised.float_quantized("block", scale_name="weight_scale_inv", block=(64, 64))
    message = refusal(tmp_path, FP8 | {"weight_block_size": [64, 64]}, quantise(matrix()))
    assert "blocks of 64 x 64" in message


@pytest.mark.parametrize("fields", ["gptq", [4], {"quant_method": "gptq", "bits": "4"}])
def test_config_of_another_kind(fields: Any, tmp_path: Path) -> None:
    message = refusal(tmp_path, fields, quantised.gptq()(matrix()))
    assert ("quantization_config" in message and "expected" in message) or "JSON object" in message


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("case", ["gptq", "awq", "pack", "f8-channel", "fp8-block", "nf4"])
def test_scales_that_are_no_numbers(case: str, value: float, tmp_path: Path) -> None:
    _, config, quantise = CASES[case]
    stored = quantise(matrix())
    suffix = next(s for s in stored.pieces if s.endswith(("scales", "absmax")) or "_scale" in s)
    stored.pieces[suffix].view(-1)[1] = value
    tensor = opened(tmp_path, config, stored).store["model.proj.weight"]
    assert isinstance(tensor, QuantisedTensor)
    with pytest.raises(
        CompileError, match=f"model.proj.{suffix}: expected scales that are numbers"
    ):
        tensor.read_parameter()


def test_scales_of_mxfp4_that_are_no_numbers(tmp_path: Path) -> None:
    stored = quantised.mxfp4(matrix(96, 64).reshape(2, 48, 64))
    stored.pieces["scales"][1, 3, 0] = 255
    config = {"quant_method": "mxfp4"}
    store = opened(tmp_path, config, stored, "experts.down_proj", "_").store
    with pytest.raises(CompileError, match="down_proj_scales: expert 1 has scales of 255"):
        store["experts.down_proj"].read()


def test_plain_weight_beside_the_quantised_one(tmp_path: Path) -> None:
    stored, plain = quantised.gptq()(matrix()), torch.zeros(N, K)
    message = refusal(tmp_path, GPTQ, stored, **{"model.proj.weight": plain})
    assert "model.proj.weight is stored twice" in message and "qweight" in message


def test_nested_scales_need_their_offset(tmp_path: Path) -> None:
    stored = quantised.bnb_four_bits("nf4", nested=True)(matrix())
    suffix = next(s for s in stored.pieces if "quant_state" in s)
    state = json.loads(bytes(stored.pieces[suffix].numpy()))
    del state["nested_offset"]
    stored.pieces[suffix] = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    assert "quant_state has no nested_offset" in refusal(tmp_path, BNB, stored)


def test_two_scales_of_one_weight(tmp_path: Path) -> None:
    stored = quantised.float_quantized("block", scale_name="weight_scale_inv")(matrix())
    stored.pieces["weight_scale"] = torch.ones(N, 1)
    assert "model.proj has two scales" in refusal(tmp_path, FP8, stored)
