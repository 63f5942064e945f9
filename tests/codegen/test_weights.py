"""Weight expressions on stored tensors, and the packed file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open

from inferc.codegen import packing
from inferc.codegen.pack_weights import PackItem, PackPlan, packed_slabs, write_weights
from inferc.codegen.weight_program import Weight, sources, weight_entries, weight_value
from inferc.errors import CompileError
from inferc.ir.blocks import dequantize
from inferc.ir.blocks_encode import random_blocks
from inferc.ir.core import Module
from inferc.ir.interp import run
from inferc.ir.lexer import ParseError
from inferc.ir.parse import parse_module
from inferc.ir.types import TensorType


def module(param: str, *lines: str) -> Module:
    """A step that reads `param @w`, and the pack function that makes it."""
    ops = "\n  ".join(lines)
    result = param
    return parse_module(
        f"func @prefill() -> ({param}) {{\n  %w = param @w : {param}\n  return %w\n}}\n"
        f"func @pack/w() -> ({result}) {{\n  {ops}\n}}\n"
    )


@pytest.mark.parametrize("dtype", ["q4_1", "u4_g64", "u8b_g32", "f8_g128", "nf4_g64", "mxfp4"])
def test_rows_of_blocks_are_moved_as_stored(dtype: str) -> None:
    m = module(
        f"{dtype}[24, 256]",
        f"%a = param @a : {dtype}[8, 256]",
        f"%b = param @b : {dtype}[32, 256]",
        f"%s = core.slice(%b) {{axis = 0, start = 8, stop = 24}} : {dtype}[16, 256]",
        f"%r = core.reshape(%s) {{shape = (2, 8, 256)}} : {dtype}[2, 8, 256]",
        f"%t = core.transpose(%r) {{perm = (1, 0, 2)}} : {dtype}[8, 2, 256]",
        f"%f = core.reshape(%t) {{shape = (16, 256)}} : {dtype}[16, 256]",
        f"%w = core.concat(%a, %f) {{axis = 0}} : {dtype}[24, 256]",
        "return %w",
    )
    rng = np.random.default_rng(0)
    stored = {n: random_blocks(dtype, r, 256, rng) for n, r in (("a", 8), ("b", 32))}
    weight = weight_value(m, "w", TensorType((24, 256), dtype), stored.__getitem__)
    assert weight.array.dtype == np.uint8
    expected = run(m.funcs["pack/w"], [], lambda n, t: dequantize(dtype, stored[n]))[0]
    np.testing.assert_array_equal(dequantize(dtype, weight.rows()), expected)
    np.testing.assert_array_equal(weight.values(), expected)
    assert sources(m, "w") == ("a", "b") and sources(m, "other") == ("other",)


def test_values_are_computed_in_float32() -> None:
    m = module(
        "f32[8]",
        "%a = param @a : bf16[8]",
        '%c = core.cast(%a) {dtype = "f32"} : f32[8]',
        '%one = core.constant() {values = (1.0,), shape = (), dtype = "f32"} : f32[]',
        "%w = core.add(%c, %one) : f32[8]",
        "return %w",
    )
    a = np.linspace(-1, 1, 8).astype(ml_dtypes.bfloat16)
    weight = weight_value(m, "w", TensorType((8,), "f32"), lambda name: a)
    np.testing.assert_array_equal(weight.values(), a.astype(np.float32) + np.float32(1))


@pytest.mark.parametrize("dtype", ["u4_g32", "mxfp4", "f8_g128"])
def test_blocks_are_not_transposed(dtype: str) -> None:
    lines = (
        f"%a = param @a : {dtype}[8, 128]",
        f"%w = core.transpose(%a) {{perm = (1, 0)}} : {dtype}[128, 8]",
        "return %w",
    )
    with pytest.raises(ParseError, match=f"{dtype}.*its last axis must stay last"):
        module(f"{dtype}[128, 8]", *lines)


@pytest.mark.parametrize(("dtype", "nbytes"), [("f8e4m3", 256), ("f8_g128", 264), ("mxfp4", 136)])
def test_codes_of_nan_are_refused(dtype: str, nbytes: int) -> None:
    raw = np.full((40, nbytes), 0x3C, np.uint8)
    raw[37] = 0xFF
    array = raw.view(ml_dtypes.float8_e4m3fn) if dtype == "f8e4m3" else raw
    item = PackItem("w", "n16", dtype, (40, 256), ("w",), 0)
    with pytest.raises(CompileError, match=f"Weight w: {dtype} .*NaN, in rows 0 to 39"):
        list(packed_slabs(item, [Weight(TensorType((40, 256), dtype), array)]))


def test_wrong_shapes_are_named() -> None:
    m = module("f32[8]", "%w = param @a : f32[8]", "return %w")
    with pytest.raises(CompileError, match=r"Weight a: expected f32\[8\]"):
        weight_value(m, "w", TensorType((8,), "f32"), lambda name: np.zeros(9, np.float32))


@pytest.mark.parametrize(("dtype", "k"), [("f32", 33), ("bf16", 33), ("q4_k", 256)])
def test_slabs_are_the_packed_tensor(dtype: str, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferc.codegen.pack_weights._SLAB_BYTES", 1 << 12)
    rng, n = np.random.default_rng(0), 75
    raw = rng.integers(0, 256, (2, n, packing.row_bytes(dtype, k)), np.uint8)
    numpy_types = {"f32": np.dtype(np.float32), "bf16": np.dtype(ml_dtypes.bfloat16)}
    type_ = TensorType((n, k), dtype)
    weights = [Weight(type_, r.view(numpy_types.get(dtype, np.dtype(np.uint8)))) for r in raw]
    single = PackItem("w", "n16", dtype, (n, k), ("w",), packing.packed_bytes(dtype, n, k))
    slabs = list(packed_slabs(single, weights))
    assert len(slabs) > 1
    np.testing.assert_array_equal(np.concatenate(slabs), packing.pack(dtype, raw[0]))
    pair = PackItem("w", "n16_pair", dtype, (n, k), ("g", "u"), 0)
    joined = np.concatenate(list(packed_slabs(pair, weights)))
    np.testing.assert_array_equal(joined, packing.pack_pair(dtype, raw[0], raw[1]))


def test_slabs_are_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferc.codegen.pack_weights._SLAB_BYTES", 1 << 8)
    table = np.random.default_rng(0).random((75, 33), np.float32)
    item = PackItem("w", "rows", "f32", (75, 33), ("w",), table.nbytes)
    slabs = list(packed_slabs(item, [Weight(TensorType((75, 33), "f32"), table)]))
    assert len(slabs) > 1
    np.testing.assert_array_equal(np.concatenate(slabs), table.view(np.uint8).reshape(-1))


def test_what_was_read_is_let_go_on_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tensor may be larger than memory: its pages go while its packed form is written."""
    monkeypatch.setattr("inferc.codegen.pack_weights._SLAB_BYTES", 1 << 12)
    rng, shape = np.random.default_rng(0), (160, 64)
    stored = {"a": rng.random(shape, np.float32)}
    m = parse_module(
        "func @prefill() -> (f32[160, 64]) {\n  %a = param @a : f32[160, 64]\n  return %a\n}\n"
    )
    nbytes = packing.packed_bytes("f32", *shape)
    plan = PackPlan((PackItem("a", "n16", "f32", shape, ("a",), nbytes),), {})

    def write(name: str, release_bytes: int) -> tuple[bytes, list[str]]:
        monkeypatch.setattr("inferc.codegen.pack_weights._RELEASE_BYTES", release_bytes)
        released: list[str] = []
        write_weights(
            tmp_path / name, plan, m, stored.__getitem__, released.append, lambda *_: None
        )
        return (tmp_path / name).read_bytes(), released

    whole, once = write("whole", 1 << 30)
    parts, often = write("parts", 1 << 13)
    assert whole == parts
    assert once == ["a"] and len(often) > 3 and set(often) == {"a"}


STACK = np.random.default_rng(3).random((3, 4, 6), np.float32)
STACKED = {
    "itself": ("f32[3, 4, 6]", ["%w = param @a : f32[3, 4, 6]"], True),
    "moved": (
        "f32[3, 3, 4]",
        [
            "%a = param @a : f32[3, 4, 6]",
            "%s = core.slice(%a) {axis = 2, start = 1, stop = 6, step = 2} : f32[3, 4, 3]",
            "%w = core.transpose(%s) {perm = (0, 2, 1)} : f32[3, 3, 4]",
        ],
        True,
    ),
    "entries moved": (
        "f32[2, 4, 6]",
        [
            "%a = param @a : f32[3, 4, 6]",
            "%w = core.slice(%a) {axis = 0, start = 1, stop = 3} : f32[2, 4, 6]",
        ],
        False,
    ),
    "computed": (
        "f32[3, 4, 6]",
        ["%a = param @a : f32[3, 4, 6]", "%w = core.neg(%a) : f32[3, 4, 6]"],
        False,
    ),
}


@pytest.mark.parametrize("name", STACKED)
def test_entries_of_a_stack_are_read_alone_where_that_is_the_same(name: str) -> None:
    type_text, lines, alone = STACKED[name]
    m = module(type_text, *lines, "return %w")
    shape = tuple(int(n) for n in type_text[4:-1].split(","))
    reads: list[int | str] = []

    def entries(source: str) -> Callable[[int], np.ndarray]:
        assert source == "a"
        return lambda i: (reads.append(i), STACK[i])[1]

    def read(source: str) -> np.ndarray:
        reads.append(source)
        return STACK

    type_, released = TensorType(shape, "f32"), list[str]()
    found = [w.array for w in weight_entries(m, "w", type_, read, released.append, entries)]
    whole = weight_value(m, "w", type_, read).array
    np.testing.assert_array_equal(np.stack(found), whole)
    assert reads == ([0, 1, 2, "a"] if alone else ["a", "a"])
    assert released == ["a"] * shape[0]


def written(path: Path, plan: PackPlan, stored: dict[str, np.ndarray]) -> tuple[int, ...]:
    m = parse_module(
        "func @prefill() -> (f32[5], f32[3, 4]) {\n  %a = param @a : f32[5]\n"
        "  %b = param @b : f32[3, 4]\n  return %a, %b\n}\n"
    )
    released: list[str] = []
    seen: list[int] = []
    offsets = write_weights(
        path, plan, m, stored.__getitem__, released.append, lambda n, done, total: seen.append(done)
    )
    assert released == ["a", "b"] and seen == [64, 64 + 256]
    return offsets


def test_file_is_aligned_safetensors(tmp_path: Path) -> None:
    plan = PackPlan(
        (
            PackItem("a", "vector", "f32", (5,), ("a",), 20),
            PackItem("b", "n16", "f32", (3, 4), ("b",), packing.packed_bytes("f32", 3, 4)),
        ),
        {},
    )
    rng = np.random.default_rng(0)
    stored = {"a": rng.random(5, np.float32), "b": rng.random((3, 4), np.float32)}
    offsets = written(tmp_path / "one", plan, stored)
    assert offsets == written(tmp_path / "two", plan, stored)
    raw = (tmp_path / "one").read_bytes()
    assert raw == (tmp_path / "two").read_bytes()
    assert all(o % 64 == 0 for o in offsets)
    np.testing.assert_array_equal(np.frombuffer(raw, np.float32, 5, offsets[0]), stored["a"])
    packed = np.frombuffer(raw, np.uint8, plan.items[1].nbytes, offsets[1])
    rows = packing.unpack("f32", packed, 3, 4).view(np.float32)
    np.testing.assert_array_equal(rows, stored["b"])
    with safe_open(tmp_path / "one", "numpy") as file:
        assert sorted(file.keys()) == ["a [vector]", "b [n16]"]
    assert json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])["a [vector]"]["shape"] == [64]
