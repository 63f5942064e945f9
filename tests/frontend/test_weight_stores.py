"""safetensors stores: what they read, and a message of its own for each way to be wrong."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from inferc.errors import CompileError
from inferc.frontend.safetensors_store import open_safetensors

A = np.arange(12, dtype=np.float32).reshape(3, 4)
B = np.ones((2, 2), np.float16)


def shard(path: Path, **tensors: np.ndarray) -> Path:
    save_file({name.replace("__", "."): value for name, value in tensors.items()}, path)
    return path


def sharded(folder: Path, weight_map: dict[str, str] | None = None) -> Path:
    """Two shards, a.weight and b.weight; the index says `weight_map`."""
    shard(folder / "one.safetensors", a__weight=A)
    shard(folder / "two.safetensors", b__weight=B)
    weight_map = weight_map or {"a.weight": "one.safetensors", "b.weight": "two.safetensors"}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def refusal(path: Path) -> str:
    with pytest.raises(CompileError) as info:
        open_safetensors(path)
    assert "\n" not in str(info.value)
    return str(info.value)


def raw(path: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(dtype: str, shape: list[int], start: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def test_single_file(tmp_path: Path) -> None:
    bf16 = A.astype(ml_dtypes.bfloat16)
    shard(tmp_path / "model.safetensors", a__weight=A, b__weight=B, c__weight=bf16)
    store = open_safetensors(tmp_path)
    assert {n: (t.dtype, t.shape) for n, t in store.tensors.items()} == {
        "a.weight": ("f32", (3, 4)),
        "b.weight": ("f16", (2, 2)),
        "c.weight": ("bf16", (3, 4)),
    }
    np.testing.assert_array_equal(store["a.weight"].read(), A)
    np.testing.assert_array_equal(store["c.weight"].read_float32(), A)
    assert store["c.weight"].read().dtype == ml_dtypes.bfloat16
    assert store.total_bytes == 48 + 8 + 24
    assert "c.weight" in store and "d.weight" not in store


def test_one_file_by_its_path(tmp_path: Path) -> None:
    store = open_safetensors(shard(tmp_path / "any.safetensors", a__weight=A))
    assert list(store.tensors) == ["a.weight"]


def test_shards(tmp_path: Path) -> None:
    store = open_safetensors(sharded(tmp_path))
    np.testing.assert_array_equal(store["b.weight"].read(), B)
    assert store["b.weight"].file.name == "two.safetensors"


def test_unaligned_data_is_read(tmp_path: Path) -> None:
    header = {"m": entry("BOOL", [1], 0, 1), "a": entry("F32", [2], 1, 9)}
    data = b"\1" + np.array([1.5, -2], "<f4").tobytes()
    store = open_safetensors(raw(tmp_path / "m.safetensors", header, data))
    np.testing.assert_array_equal(store["a"].read(), [1.5, -2])


def test_tensor_without_elements(tmp_path: Path) -> None:
    path = raw(tmp_path / "m.safetensors", {"a": entry("F32", [0, 4], 0, 0)})
    assert open_safetensors(path)["a"].read().shape == (0, 4)


def test_stray_single_file_beside_an_index_is_ignored(tmp_path: Path) -> None:
    shard(tmp_path / "model.safetensors", a__weight=A + 1)
    np.testing.assert_array_equal(open_safetensors(sharded(tmp_path))["a.weight"].read(), A)


def test_tensor_in_two_shards_is_where_the_index_says(tmp_path: Path) -> None:
    sharded(tmp_path)
    shard(tmp_path / "two.safetensors", a__weight=A + 1, b__weight=B)
    np.testing.assert_array_equal(open_safetensors(tmp_path)["a.weight"].read(), A)


def test_missing_shard(tmp_path: Path) -> None:
    (sharded(tmp_path) / "two.safetensors").unlink()
    message = refusal(tmp_path)
    assert "Missing shards" in message and "two.safetensors" in message
    assert "1 of 2 tensors there (b.weight" in message


def test_stale_index(tmp_path: Path) -> None:
    sharded(tmp_path, {"a.weight": "two.safetensors", "b.weight": "two.safetensors"})
    shard(tmp_path / "two.safetensors", b__weight=B)
    shard(tmp_path / "three.safetensors", c__weight=A)
    sharded(
        tmp_path,
        {"a.weight": "two.safetensors", "b.weight": "two.safetensors", "c": "one.safetensors"},
    )
    message = refusal(tmp_path)
    assert "stale" in message
    assert "a.weight (said to be in two.safetensors, is in one.safetensors)" in message


def test_index_entry_in_no_shard(tmp_path: Path) -> None:
    names = {"a.weight": "one.safetensors", "b.weight": "two.safetensors", "z": "one.safetensors"}
    message = refusal(sharded(tmp_path, names))
    assert "in no shard: z (said to be in one.safetensors)" in message


def test_tensor_that_the_index_does_not_know(tmp_path: Path) -> None:
    sharded(tmp_path)
    shard(tmp_path / "two.safetensors", b__weight=B, extra__weight=A)
    assert "not in the index: extra.weight in two.safetensors" in refusal(tmp_path)


def test_index_must_stay_in_its_folder(tmp_path: Path) -> None:
    message = refusal(sharded(tmp_path, {"a.weight": "../one.safetensors"}))
    assert "outside its folder: ../one.safetensors" in message


def test_damaged_index(tmp_path: Path) -> None:
    (sharded(tmp_path) / "model.safetensors.index.json").write_text("{}")
    assert "no safetensors index" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["model-00001-of-00002.safetensors"], "shards.*but no model.safetensors.index.json"),
        (["consolidated.safetensors"], "publisher's own names"),
        (["pytorch_model.bin"], "only pickled weights"),
        ([], "holds no weights"),
    ],
)
def test_folders_without_weights(files: list[str], message: str, tmp_path: Path) -> None:
    for name in files:
        shard(tmp_path / name, a=A)
    assert re.search(message, refusal(tmp_path))


def test_truncated_file_names_the_tensors(tmp_path: Path) -> None:
    path = shard(tmp_path / "model.safetensors", a__weight=A, b__weight=B)
    path.write_bytes(path.read_bytes()[:-10])
    message = refusal(tmp_path)
    assert "model.safetensors is truncated" in message and "Cut off: " in message


def test_tensors_that_share_bytes(tmp_path: Path) -> None:
    header = {"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 4, 12)}
    raw(tmp_path / "model.safetensors", header, bytes(12))
    assert "a and b share bytes" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"abc", "3 bytes, less than a header"),
        (struct.pack("<Q", 1 << 40) + b"{}", "would have a 1099511627776 byte header"),
        (struct.pack("<Q", 90) + b"{}", "truncated inside its header"),
        (struct.pack("<Q", 2) + b"[]", "no JSON object"),
        (struct.pack("<Q", 3) + b"{x}", "damaged"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS pointer"),
        (b"", "is empty"),
    ],
)
def test_files_that_are_no_safetensors(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    assert message in refusal(path)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"a": entry("F4", [2], 0, 1)}, "Tensor a in .* has the unknown type F4"),
        ({"a": entry("F32", [2], 0, 4)}, r"Tensor a .* 4 bytes, but f32 \[2\] needs 8"),
        ({"a": {"dtype": "F32"}}, "entry of tensor a in .* is damaged"),
        ({"a": entry("F32", [-1], 0, 4)}, "entry of tensor a in .* is damaged"),
        (b'{"a": {}, "a": {}}', "names occur twice: a"),
    ],
)
def test_wrong_headers(header: object, message: str, tmp_path: Path) -> None:
    assert re.search(message, refusal(raw(tmp_path / "m.safetensors", header, b"\0" * 64)))


def test_reading_a_type_without_meaning(tmp_path: Path) -> None:
    path = raw(tmp_path / "m.safetensors", {"a": entry("F8_E4M3", [4], 0, 4)}, b"\0" * 4)
    with pytest.raises(CompileError, match=r"Tensor a in .*stored as f8_e4m3.*supported: f32"):
        open_safetensors(path)["a"].read()
