"""Quantised weights read through the store: bit for bit what the library makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from inferc.errors import CompileError
from inferc.frontend.quantised_store import QuantisedWeights, gathered
from inferc.frontend.quantised_tensor import QuantisedTensor
from inferc.frontend.safetensors_store import open_safetensors
from tests import quantised
from tests.quantised import Stored

N, K = 48, 256
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True}
BNB8 = {"quant_method": "bitsandbytes", "load_in_8bit": True}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


def compressed(form: str, **weights: Any) -> dict[str, Any]:
    fields = {"num_bits": 4, "type": "int", "symmetric": True, **weights}
    group = {"targets": ["Linear"], "weights": fields, "input_activations": None}
    return {
        "quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"],
        "quantization_status": "compressed", "config_groups": {"group_0": group},
    }  # fmt: skip


def matrix(rows: int = N, columns: int = K, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([rows, columns, seed])
    return (rng.standard_normal((rows, columns)) * 0.1 + 0.02).astype(np.float32)


def opened(
    folder: Path, config: dict[str, Any], stored: Stored, module: str = "model.proj",
    separator: str = ".", **more: torch.Tensor,
) -> QuantisedWeights:  # fmt: skip
    tensors = {f"{module}{separator}{k}": v for k, v in stored.pieces.items()}
    save_file(tensors | more, folder / "model.safetensors")
    return gathered(open_safetensors(folder), config, "config.json")


def pack(bits: int, group: int, **more: Any) -> dict[str, Any]:
    size = {"strategy": "channel"} if group == -1 else {"strategy": "group", "group_size": group}
    return compressed("pack-quantized", **({"num_bits": bits} | size | more))


F16 = torch.float16
CASES: dict[str, tuple[str, dict[str, Any], quantised.Quantiser]] = {
    "gptq": ("u4_g32", GPTQ, quantised.gptq()),
    "gptq-64": ("u4_g64", GPTQ | {"group_size": 64}, quantised.gptq(group=64)),
    "gptq-128": ("u4_g128", GPTQ | {"group_size": 128}, quantised.gptq(group=128)),
    "gptq-row": ("u4_g128", GPTQ | {"group_size": -1}, quantised.gptq(group=-1)),
    "gptq-8": ("u8_g32", GPTQ | {"bits": 8}, quantised.gptq(8)),
    "gptq-asymmetric": (
        "u4_g32", GPTQ | {"sym": False, "checkpoint_format": "gptq"},
        quantised.gptq(symmetric=False),
    ),
    "gptq-v2": (
        "u4_g32", GPTQ | {"sym": False, "checkpoint_format": "gptq_v2"},
        quantised.gptq(symmetric=False, version=2),
    ),
    "gptq-8-v2": (
        "u8_g64",
        GPTQ | {"bits": 8, "group_size": 64, "sym": False, "checkpoint_format": "gptq_v2"},
        quantised.gptq(8, 64, symmetric=False, version=2),
    ),
    "gptq-act-order": ("u4_g32", GPTQ | {"desc_act": True}, quantised.gptq(act_order=True)),
    "gptq-8-act-order": (
        "u8_g128", GPTQ | {"bits": 8, "group_size": 128, "desc_act": True},
        quantised.gptq(8, 128, act_order=True),
    ),
    "gptq-bf16": ("u4b_g32", GPTQ, quantised.gptq(dtype=torch.bfloat16)),
    "awq": ("u4_g32", AWQ, quantised.awq()),
    "awq-128": ("u4_g128", AWQ | {"group_size": 128}, quantised.awq(128)),
    "awq-row": ("u4_g128", AWQ | {"group_size": -1}, quantised.awq(-1)),
    "pack": ("u4b_g32", pack(4, 32), quantised.pack_quantized()),
    "pack-128-f16": ("u4_g128", pack(4, 128), quantised.pack_quantized(4, 128, dtype=F16)),
    "pack-row": ("u4b_g128", pack(4, -1), quantised.pack_quantized(4, -1)),
    "pack-asymmetric": (
        "u4b_g64", pack(4, 64, symmetric=False), quantised.pack_quantized(4, 64, symmetric=False)
    ),
    "pack-8-asymmetric": (
        "u8b_g32", pack(8, 32, symmetric=False), quantised.pack_quantized(8, symmetric=False)
    ),
    "pack-8-row": ("u8b_g128", pack(8, -1), quantised.pack_quantized(8, -1)),
    "pack-group-order": (
        "u4b_g32", pack(4, 32, actorder="group"), quantised.pack_quantized(act_order=True)
    ),
    "pack-static-order": (
        "u4b_g32", pack(4, 32, actorder="static"), quantised.pack_quantized()
    ),
    "int8-channel": (
        "i8", compressed("int-quantized", num_bits=8, strategy="channel"),
        quantised.int_quantized(),
    ),
    "int8-channel-f32": (
        "i8", compressed("int-quantized", num_bits=8, strategy="channel"),
        quantised.int_quantized(dtype=torch.float32),
    ),
    "int8-tensor": (
        "i8", compressed("naive-quantized", num_bits=8, strategy="tensor"),
        quantised.int_quantized(0),
    ),
    "int8-group": (
        "u8b_g64", compressed("int-quantized", num_bits=8, strategy="group", group_size=64),
        quantised.int_quantized(64),
    ),
    "int8-asymmetric": (
        "u8b_g128",
        compressed("int-quantized", num_bits=8, strategy="channel", symmetric=False),
        quantised.int_quantized(symmetric=False),
    ),
    "f8-channel": (
        "f8e4m3", compressed("float-quantized", num_bits=8, type="float", strategy="channel"),
        quantised.float_quantized("channel", dtype=torch.bfloat16),
    ),
    "f8-tensor": (
        "f8e4m3", compressed("float-quantized", num_bits=8, type="float", strategy="tensor"),
        quantised.float_quantized("tensor"),
    ),
    "f8-block": (
        "f8_g128",
        compressed("float-quantized", num_bits=8, type="float", strategy="block",
                   block_structure=[128, 128]),
        quantised.float_quantized("block"),
    ),
    "fp8-block": (
        "f8_g128", FP8, quantised.float_quantized("block", scale_name="weight_scale_inv")
    ),
    "fp8-wide": (
        "f8_g128", FP8 | {"weight_block_size": [16, 256]},
        quantised.float_quantized("block", scale_name="weight_scale_inv", block=(16, 256)),
    ),
    "fp8-tensor": (
        "f8e4m3", FP8 | {"weight_block_size": None, "activation_scheme": "static"},
        quantised.float_quantized("tensor"),
    ),
    "fbgemm": (
        "f8e4m3", {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0},
        quantised.float_quantized("channel"),
    ),
    "nf4": ("nf4_g64", BNB, quantised.bnb_four_bits("nf4")),
    "nf4-nested": ("nf4_g64", BNB, quantised.bnb_four_bits("nf4", nested=True)),
    "fp4-128": ("fp4_g64", BNB, quantised.bnb_four_bits("fp4", 128)),
    "nf4-over-rows": ("nf4_g64", BNB, quantised.bnb_four_bits("nf4", 512)),
    "bnb-int8": ("i8", BNB8, quantised.bnb_int8),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_values_are_the_librarys(case: str, tmp_path: Path) -> None:
    dtype, config, quantise = CASES[case]
    stored = quantise(matrix())
    weights = opened(tmp_path, config, stored)
    assert list(weights.store.tensors) == ["model.proj.weight"]
    tensor = weights.store["model.proj.weight"]
    assert isinstance(tensor, QuantisedTensor)
    assert (tensor.dtype, tensor.shape, tensor.readable) == (dtype, (N, K), True)
    np.testing.assert_array_equal(tensor.read_parameter(), stored.values)
    assert tensor.read().nbytes == tensor.nbytes
    assert np.abs(stored.values - matrix()).max() < 0.1  # the quantiser of the test quantises


@pytest.mark.parametrize("case", ["gptq-act-order", "awq", "pack-asymmetric", "nf4", "fp8-block"])
def test_pieces_of_rows_are_read_alike(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferc.frontend.quantised_tensor._STEP_ELEMENTS", 64 * K)
    _, config, quantise = CASES[case]
    stored = quantise(matrix(200))
    tensor = opened(tmp_path, config, stored).store["model.proj.weight"]
    assert isinstance(tensor, QuantisedTensor)
    np.testing.assert_array_equal(tensor.read_parameter(), stored.values)


@pytest.mark.parametrize("act_order", [False, True])
def test_last_group_cut_short(act_order: bool, tmp_path: Path) -> None:
    config = GPTQ | {"group_size": 64, "desc_act": act_order}
    stored = quantised.gptq(group=64, act_order=act_order)(matrix(N, 96))
    tensor = opened(tmp_path, config, stored).store["model.proj.weight"]
    assert isinstance(tensor, QuantisedTensor)
    assert tensor.dtype == "u4_g32"
    np.testing.assert_array_equal(tensor.read_parameter(), stored.values)


@pytest.mark.parametrize("case", ["int8-channel", "f8-channel", "f8-tensor"])
def test_experts_have_no_vectors(case: str, tmp_path: Path) -> None:
    _, config, quantise = CASES[case]
    stored = quantise(matrix())
    weights = opened(tmp_path, config, stored, module="model.mlp.experts.3.up_proj")
    tensor = weights.store["model.mlp.experts.3.up_proj.weight"]
    assert isinstance(tensor, QuantisedTensor)
    assert tensor.row_scale is None
    assert tensor.is_blocks
    np.testing.assert_array_equal(tensor.read_parameter(), stored.values)


def test_mxfp4(tmp_path: Path) -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    w = np.random.default_rng(0).standard_normal((3, 8, 64)).astype(np.float32)
    stored = quantised.mxfp4(w)
    weights = opened(tmp_path, {"quant_method": "mxfp4"}, stored, "mlp.experts.down_proj", "_")
    tensor = weights.store["mlp.experts.down_proj"]
    assert isinstance(tensor, QuantisedTensor)
    assert (tensor.dtype, tensor.shape) == ("mxfp4", (3, 8, 64))
    np.testing.assert_array_equal(tensor.read_float32(), stored.values)
    theirs = convert_moe_packed_tensors(
        stored.pieces["blocks"], stored.pieces["scales"], dtype=torch.float32
    )
    np.testing.assert_array_equal(tensor.read_parameter(), theirs.numpy())


def test_equal_orders_are_one(tmp_path: Path) -> None:
    config, quantise = GPTQ | {"desc_act": True}, quantised.gptq(act_order=True)
    q, k, v = (quantise(matrix(rows)) for rows in (48, 16, 32))
    others = {f"model.k.{n}": t for n, t in k.pieces.items()}
    others |= {f"model.v.{n}": t for n, t in v.pieces.items()}
    tensors = opened(tmp_path, config, q, "model.q", **others).store.tensors
    orders = {id(t.order) for t in tensors.values() if isinstance(t, QuantisedTensor)}
    assert len(tensors) == 3
    assert len(orders) == 1


def test_zero_biases_of_gptq_are_no_parameters(tmp_path: Path) -> None:
    bias = {"model.proj.bias": torch.zeros(N), "model.other.bias": torch.zeros(N)}
    weights = opened(tmp_path, GPTQ, quantised.gptq()(matrix()), **bias)
    assert weights.ignored == ("^model\\.proj\\.bias$",)
    bias["model.proj.bias"] = torch.ones(N)
    assert opened(tmp_path, GPTQ, quantised.gptq()(matrix()), **bias).ignored == ()


def test_equal_codes_with_other_scales_differ(tmp_path: Path) -> None:
    stored = quantised.int_quantized()(matrix())
    same = {f"c.{k}": v.clone() for k, v in stored.pieces.items()}
    other = {f"b.{k}": v.clone() for k, v in stored.pieces.items()}
    other["b.weight_scale"] *= 2
    config = compressed("int-quantized", num_bits=8, strategy="channel")
    tensors = opened(tmp_path, config, stored, "a", **other, **same).store
    assert tensors["a.weight"].same_bytes(tensors["c.weight"])
    assert not tensors["a.weight"].same_bytes(tensors["b.weight"])


def test_plain_weights_beside(tmp_path: Path) -> None:
    plain = {"model.norm.weight": torch.ones(8), "lm_head.weight": torch.zeros(4, 8)}
    weights = opened(tmp_path, AWQ, quantised.awq()(matrix()), **plain)
    assert {n: t.dtype for n, t in weights.store.tensors.items()} == {
        "lm_head.weight": "f32", "model.norm.weight": "f32", "model.proj.weight": "u4_g32",
    }  # fmt: skip


def test_mixed_schemes(tmp_path: Path) -> None:
    config = pack(4, 32)
    eight = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    config["config_groups"]["group_1"] = {
        "targets": ["re:.*other$"], "weights": eight, "format": "int-quantized",
        "input_activations": {"num_bits": 8, "dynamic": True, "strategy": "token"},
    }  # fmt: skip
    second = quantised.int_quantized()(matrix(seed=1))
    others = {f"model.other.{n}": t for n, t in second.pieces.items()}
    others["model.other.input_scale"] = torch.ones(1)
    weights = opened(tmp_path, config, quantised.pack_quantized()(matrix()), **others)
    dtypes = {n: t.dtype for n, t in weights.store.tensors.items()}
    assert dtypes["model.proj.weight"] == "u4b_g32"
    assert dtypes["model.other.weight"] == "i8"
    assert len(weights.notes) == 1
    assert "activations" in weights.notes[0]


# -- refusals
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
        (BNB | {"other": 1}, r"not known for bitsandbytes: other = 1"),
    ],
)  # fmt: skip
def test_config_is_refused_by_name(config: dict[str, Any], words: str, tmp_path: Path) -> None:
    import re

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
