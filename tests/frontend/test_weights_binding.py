"""Binding: every parameter once, every tensor accounted for, and all faults in one message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from inferc.errors import CompileError
from inferc.frontend.safetensors_store import open_safetensors
from inferc.frontend.weight_binding import bind
from inferc.frontend.weight_transforms import (
    Binding,
    Rows,
    SubtractOne,
    Transpose,
    UnpermuteHeads,
    identity_bindings,
)
from inferc.frontend.weights import WeightStore, listed
from inferc.ir.blocks import dequantize
from inferc.ir.blocks_encode import random_blocks

W = np.arange(24, dtype=np.float32).reshape(6, 4)


def store_of(tmp_path: Path, **tensors: np.ndarray) -> WeightStore:
    save_file(dict(tensors), tmp_path / "model.safetensors")
    return open_safetensors(tmp_path)


def refusal(*args: Any, **kwargs: Any) -> str:
    with pytest.raises(CompileError) as info:
        bind(*args, **kwargs)
    return str(info.value)


def test_complete_binding(tmp_path: Path) -> None:
    store = store_of(tmp_path, a=W, b=W)
    bound = bind({"x.a": (6, 4), "x.b": (6, 4)}, identity_bindings({"a": "x.a", "b": "x.b"}), store)
    assert bound["x.a"] == Binding("x.a", ("a",))


def test_all_faults_at_once(tmp_path: Path) -> None:
    store = store_of(tmp_path, a=W, b=W, surplus=W, masks=np.ones(3, bool))
    bindings = [
        Binding("a", ("a",)),
        Binding("a", ("b",)),
        Binding("gone", ("nowhere",)),
        Binding("wide", ("b",)),
        Binding("mask", ("masks",)),
    ]
    shapes = {"a": (6, 4), "gone": (1,), "wide": (4, 6), "mask": (3,), "free": (7,)}
    message = refusal(shapes, bindings, store)
    assert "without a stored tensor: free [7]" in message
    assert "bound more than once: a (from a), a (from b)" in message
    assert "does not hold: nowhere (for gone)" in message
    assert "no parameter uses: surplus [6, 4]" in message
    assert "cannot be compiled: masks (bool in model.safetensors)" in message
    assert "wide wants [4, 6], b gives [6, 4]" in message
    assert "\n" not in message


def test_known_buffers_may_be_unused(tmp_path: Path) -> None:
    store = store_of(tmp_path, **{"a": W, "h.0.attn.bias": W, "model.rotary_emb.inv_freq": W})
    bind({"a": (6, 4)}, identity_bindings({"a": "a"}), store)


def test_equal_duplicate_is_accepted_and_unequal_refused(tmp_path: Path) -> None:
    bindings, duplicates = identity_bindings({"embed": "embed"}), {"head": "embed"}
    store = store_of(tmp_path, embed=W, head=W)
    bind({"embed": (6, 4)}, bindings, store, duplicates=duplicates)
    store = store_of(tmp_path, embed=W, head=W + 1)
    message = refusal({"embed": (6, 4)}, bindings, store, duplicates=duplicates)
    assert "holds two that differ: head and embed" in message
    assert "no parameter uses" in refusal({"embed": (6, 4)}, bindings, store)


def test_shapes_through_transforms(tmp_path: Path) -> None:
    store = store_of(tmp_path, a=W, b=W)
    cases = {
        "joined": (Binding("joined", ("a", "b")), (12, 4)),
        "turned": (Binding("turned", ("a",), (Transpose(),)), (4, 6)),
        "cut": (Binding("cut", ("a",), (Rows(2, 5), Transpose())), (4, 3)),
        "heads": (Binding("heads", ("a",), (UnpermuteHeads(3),)), (6, 4)),
    }
    bound = bind(
        {name: shape for name, (_, shape) in cases.items()}, [b for b, _ in cases.values()], store
    )
    for name, (_, shape) in cases.items():
        assert bound[name].evaluate(store).shape == shape


@pytest.mark.parametrize(
    ("binding", "message"),
    [
        (Binding("p", ("a",), (Rows(4, 9),)), "rows 4 to 9 are not in shape"),
        (Binding("p", ("a",), (UnpermuteHeads(4),)), "6 rows are not 4 heads of even size"),
        (Binding("p", ("v",), (Transpose(),)), "has not two axes to exchange"),
        (Binding("p", ("a", "v")), "cannot be joined along axis 0"),
    ],
)
def test_impossible_transforms(binding: Binding, message: str, tmp_path: Path) -> None:
    store = store_of(tmp_path, a=W, v=np.ones(5, np.float32))
    assert message in refusal({"p": (6, 4)}, [binding], store, known_unused=[r"^[av]$"])


def test_values_of_transforms() -> None:
    rows = np.array([0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11])
    stored = np.arange(12)[:, None]
    np.testing.assert_array_equal(UnpermuteHeads(2).apply(stored)[:, 0], rows)
    np.testing.assert_array_equal(SubtractOne().apply(np.float16([1, 1.5])), [0, 0.5])
    np.testing.assert_array_equal(Transpose().apply(W), W.T)
    np.testing.assert_array_equal(Rows(1, 3).apply(W), W[1:3])


@given(heads=st.integers(1, 6), half=st.integers(1, 5), columns=st.integers(1, 3))
def test_unpermute_undoes_llama_cpps_permute(heads: int, half: int, columns: int) -> None:
    original = np.arange(heads * 2 * half * columns).reshape(-1, columns)
    split = original.reshape(heads, 2, half, columns)
    permuted = split.swapaxes(1, 2).reshape(original.shape)
    np.testing.assert_array_equal(UnpermuteHeads(heads).apply(permuted), original)


@pytest.mark.parametrize("transform", [UnpermuteHeads(2), Rows(4, 12)])
def test_row_transforms_work_on_raw_blocks(transform: UnpermuteHeads | Rows) -> None:
    raw = random_blocks("q4_k", 16, 256, np.random.default_rng(0))
    assert transform.rows_only
    moved = transform.apply(raw)
    assert isinstance(moved, np.ndarray)
    np.testing.assert_array_equal(
        dequantize("q4_k", moved.view(np.uint8)), transform.apply(dequantize("q4_k", raw))
    )


def test_listed_folds_layers() -> None:
    names = [f"model.layers.{i}.up [2]" for i in (0, 1, 2, 5, 7, 8)] + ["head"]
    assert listed(names) == "model.layers.*.up [2] (* = 0-2, 5, 7-8), head"
    assert listed(["a.1.b"]) == "a.1.b"
