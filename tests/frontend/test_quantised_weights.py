"""Quantised weights read through the store: bit for bit what the library makes of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from inferc.frontend.quantised_tensor import QuantisedTensor
from tests import quantised
from tests.frontend.quantised_cases import AWQ, CASES, GPTQ, K, N, compressed, matrix, opened, pack


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
