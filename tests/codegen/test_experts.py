"""Experts as compiled, against the reference, in every form, and bit-equal for any batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from inferc.codegen.group import Group, tensor
from inferc.codegen.kernel import KernelOptions
from inferc.codegen.pack_weights import PackItem, expert_slabs, packed_slabs
from inferc.codegen.registry import choose
from inferc.codegen.select import step_functions
from inferc.codegen.targets import parse_target
from inferc.codegen.weight_program import Weight, weight_entries
from inferc.errors import CompileError
from inferc.ir.parse import parse_module
from inferc.ir.types import TensorType
from tests.codegen.experts_step import VOCAB, Shape, batch, compiled, reference

CLAMPED = ", limit = 0.7, alpha = 1.702, offset = 1.0"
SHAPES = {
    "odd sizes": Shape(7, 3, 37, 21),
    "one expert": Shape(1, 1, 16, 16),
    "bf16": Shape(6, 2, 50, 34, "bf16", "bf16", "gelu_tanh"),
    "clamped, with biases": Shape(5, 2, 24, 40, "f16", "f16", biased=True, more=CLAMPED),
    "no gate": Shape(5, 4, 33, 48, activation="relu2", gated=False, biased=True),
    "blocks": Shape(5, 2, 64, 32, "q4_1", "q8_0"),
    "k blocks": Shape(4, 2, 256, 256, "q4_k", "q6_k", "gelu"),
    "mxfp4, clamped": Shape(5, 2, 64, 96, "mxfp4", "mxfp4", biased=True, more=CLAMPED),
    "groups": Shape(4, 2, 128, 128, "u4b_g128", "f8_g128"),
    "dense bytes": Shape(4, 2, 50, 34, "i8", "f8e4m3"),
}
MANY = 200  # more rows than are gathered at once


def ids(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCAB, count).astype(np.int32)


@pytest.mark.parametrize("name", SHAPES)
def test_against_the_reference_and_batch_invariant(name: str, tmp_path: Path) -> None:
    shape = SHAPES[name]
    stored, tokens = shape.stored(), ids(MANY)
    step = compiled(shape, stored, tmp_path, MANY, compute="f32")
    whole = step.step("prefill", batch(tokens))
    wanted = reference(shape, stored, tokens)
    assert np.abs(whole - wanted).max() < 3e-6 * np.abs(wanted).max()
    for start, stop in ((0, 1), (7, 9), (50, 63), (3, 150)):
        part = step.step("prefill", batch(tokens[start:stop]))
        np.testing.assert_array_equal(part, whole[start:stop])
    np.testing.assert_array_equal(step.step("decode", batch(tokens[9:10])), whole[9:10])
    step.close()


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_threads_change_nothing(threads: int, tmp_path: Path) -> None:
    shape = SHAPES["odd sizes"]
    stored, tokens = shape.stored(), ids(31)
    made = [compiled(shape, stored, tmp_path / str(n), MANY, threads=n) for n in (2, threads)]  # type: ignore[arg-type]
    for count in (1, 2, 31):
        a, b = (step.step("prefill", batch(tokens[:count])) for step in made)
        np.testing.assert_array_equal(a, b)
    for step in made:
        step.close()


def test_all_rows_to_one_expert(tmp_path: Path) -> None:
    shape = SHAPES["odd sizes"]
    stored, tokens = shape.stored(), ids(MANY)
    stored["routes"][:] = np.arange(7)[None]
    step = compiled(shape, stored, tmp_path, MANY)
    wanted = reference(shape, stored, tokens)
    found = step.step("prefill", batch(tokens))
    assert np.abs(found - wanted).max() < 3e-6 * np.abs(wanted).max()
    step.close()


def test_rounded_arithmetic(tmp_path: Path) -> None:
    cases = (("int8", "blocks"), ("int8", "mxfp4, clamped"), ("bf16", "bf16"))
    for compute, shape in ((compute, SHAPES[name]) for compute, name in cases):
        stored, tokens = shape.stored(), ids(40)
        step = compiled(shape, stored, tmp_path / f"{compute}-{shape.up}", MANY, compute=compute)
        whole, wanted = step.step("prefill", batch(tokens)), reference(shape, stored, tokens)
        assert np.abs(whole - wanted).max() < 0.03 * np.abs(wanted).max()
        np.testing.assert_array_equal(step.step("prefill", batch(tokens[5:6])), whole[5:6])
        step.close()


def test_portable_code(tmp_path: Path) -> None:
    shape = SHAPES["clamped, with biases"]
    stored, tokens = shape.stored(), ids(20)
    step = compiled(shape, stored, tmp_path, MANY, target="cpu:portable")
    wanted = reference(shape, stored, tokens)
    assert np.abs(step.step("prefill", batch(tokens)) - wanted).max() < 3e-6 * np.abs(wanted).max()
    step.close()


def test_gate_and_up_of_different_types_are_refused() -> None:
    module = SHAPES["odd sizes"].module(8)
    step = step_functions(module)[0]
    group = Group(next(op for op in step.ops if op.attrs.get("kind") == "experts"), step)
    gate = group.ops("nn.experts")[0].operands[3]
    gate.type = TensorType(tensor(gate).shape, "bf16")
    with pytest.raises(CompileError, match="gate and up differ in type"):
        choose(group, KernelOptions(parse_target("cpu:native")))


def test_experts_stored_one_by_one_are_read_one_by_one() -> None:
    rows, e, n, k = TensorType((3, 20, 8), "f32"), 3, 20, 8
    lines = [f"%p{i} = param @e.{i} : f32[{n}, {k}]" for i in range(e)]
    module = parse_module(
        f"func @prefill() -> ({rows}) {{\n  %w = param @w : {rows}\n  return %w\n}}\n"
        f"func @pack/w() -> ({rows}) {{\n  " + "\n  ".join(lines) + "\n"
        f"  %c = core.concat(%p0, %p1, %p2) {{axis = 0}} : f32[{e * n}, {k}]\n"
        f"  %w = core.reshape(%c) {{shape = ({e}, {n}, {k})}} : {rows}\n  return %w\n}}\n"
    )
    arrays = {f"e.{i}": np.full((n, k), i, np.float32) for i in range(e)}
    log: list[str] = []

    def read(name: str) -> np.ndarray:
        log.append(f"read {name}")
        return arrays[name]

    entries = weight_entries(module, "w", rows, read, lambda name: log.append(f"drop {name}"))
    for i, entry in enumerate(entries):
        np.testing.assert_array_equal(entry.array, arrays[f"e.{i}"])
    assert log == [f"{what} e.{i}" for i in range(e) for what in ("read", "drop")]


def test_stacks_are_packed_matrices_one_behind_the_other() -> None:
    rng = np.random.default_rng(0)
    stack = rng.standard_normal((3, 20, 8)).astype(np.float32)
    weights = [Weight(TensorType((20, 8), "f32"), matrix) for matrix in stack]
    item = PackItem("w", "experts", "f32", (3, 20, 8), ("w",), 0)
    each = PackItem("w", "n16", "f32", (20, 8), ("w",), 0)
    found = np.concatenate(list(expert_slabs(item, [iter(weights)])))
    wanted = np.concatenate([slab for w in weights for slab in packed_slabs(each, [w])])
    np.testing.assert_array_equal(found, wanted)
