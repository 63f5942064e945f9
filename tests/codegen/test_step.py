"""Whole steps, compiled, against the interpreter: every architecture of the dense family."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from inferc.codegen.group import tensor
from inferc.codegen.kernel import KernelOptions
from inferc.codegen.library import generate
from inferc.codegen.select import SelectKernels
from inferc.errors import CompileError
from inferc.ir.core import Module
from inferc.ir.dims import sym
from inferc.passes.manager import run_passes
from inferc.passes.pipeline import PHASES, PipelineOptions
from inferc.passes.plan_memory import PlanMemory
from inferc.passes.registry import make_pass
from inferc.runtime.executors.step_library import StepArgs
from tests.codegen.step_runner import (
    Batch,
    Compiled,
    interpret,
    make_batch,
    random_params,
)
from tests.passes import nn_models

PAGE = 16
PAGES = 12
TABLES = np.array([[3, 1, 5, 7], [0, 4, 2, 9]])
# Float32 sums in another order; logits are sums of some hundred terms through two layers.
TOLERANCE = 1e-5
Stored = Mapping[str, np.ndarray]


def fused(name: str, kv_dtype: str = "f32", **changes: object) -> Module:
    """An architecture through the passes, up to the choice of kernels."""
    module = nn_models.build(name, **changes)
    options = PipelineOptions(context_tokens=4 * PAGE, page_tokens=PAGE, kv_dtype=kv_dtype)
    names = [n for p in PHASES if p.name in ("serve", "fuse", "plan") for n in p.passes]
    passes = [make_pass(n, options.of_pass(n)) for n in names]
    run_passes(module, passes, given={"normalized", "raised"})
    return module


def ids(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, nn_models.VOCAB, count)


def batch(new: tuple[int, ...], cached: tuple[int, ...], seed: int, **more: object) -> Batch:
    return make_batch(new, cached, TABLES[: len(new)], PAGE, ids(sum(new), seed), **more)  # type: ignore[arg-type]


def caches_of(compiled: Compiled) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(k.astype(np.float32), v.astype(np.float32)) for k, v in compiled.pools]


def check_steps(module: Module, stored: Stored, compiled: Compiled, tolerance: float) -> None:
    """Ragged prefill over a page and a window, decode, then a chunk beside a decode."""
    steps = [
        ("prefill", batch((5, PAGE + 2), (0, 0), 1)),
        ("decode", batch((1, 1), (5, PAGE + 2), 2)),
        ("prefill", batch((PAGE, 1), (6, PAGE + 3), 3, logit_rows=(0, 3, PAGE))),
    ]
    caches: list = caches_of(compiled)
    for phase, step in steps:
        found = compiled.step(phase, step)
        expected, caches = interpret(module, phase, step, caches, stored)
        error = np.abs(found - expected).max() / np.abs(expected).max()
        assert error < tolerance, (phase, error)
        pairs = zip(compiled.pools, caches, strict=True)
        for found_, reference in (
            (a, b) for mine, its in pairs for a, b in zip(mine, its, strict=True)
        ):
            largest = np.abs(reference).max()
            assert np.abs(found_.astype(np.float32) - reference).max() < 10 * tolerance * largest


@pytest.mark.parametrize("name", nn_models.MODELS)
def test_step_is_what_the_ir_says(name: str, tmp_path: Path) -> None:
    module = fused(name)
    stored = random_params(module)
    compiled = Compiled(module, stored, tmp_path, PAGES)
    check_steps(module, stored, compiled, TOLERANCE)
    compiled.close()


@pytest.mark.parametrize("dtype", ["bf16", "f16", "q8_0", "q4_1", "u4_g32", "f8e4m3"])
def test_weight_types(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn_models, "INNER", 64)  # whole blocks
    module = fused("llama", weight=dtype, up_weight=dtype, tied=True)
    stored = random_params(module)
    compiled = Compiled(module, stored, tmp_path, PAGES, compute="f32")
    check_steps(module, stored, compiled, TOLERANCE)
    compiled.close()


@pytest.mark.parametrize(
    ("dtype", "compute", "tolerance"),
    [("q8_0", "int8", 0.05), ("q8_0", "int16", 2e-4), ("bf16", "bf16", 0.02)],
)
def test_rounded_arithmetic(
    dtype: str, compute: str, tolerance: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Activations are rounded to 8 or 16 bits or so; two layers add up."""
    monkeypatch.setattr(nn_models, "INNER", 64)
    module = fused("llama", weight=dtype, up_weight=dtype)
    stored = random_params(module)
    compiled = Compiled(module, stored, tmp_path, PAGES, compute=compute)
    math = f"Math{compute.capitalize()}"
    assert any(f"{math}>(" in s.code for s in compiled.generated.sources())
    check_steps(module, stored, compiled, tolerance)
    compiled.close()


def test_prefill_precision_is_for_prefill_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of prompts are rounded. Decode and logits are not, nor are weights of other types."""
    monkeypatch.setattr(nn_models, "INNER", 64)
    module = fused("llama", weight="q8_0", up_weight="bf16")
    stored = random_params(module)
    compiled = Compiled(module, stored, tmp_path, PAGES, compute="f32", prefill_precision="int8")
    used = set()
    for group, unit in compiled.generated.units.of_group.items():
        math = re.search(r"<([A-Z0-9_]+), (Math\w+)>\(", unit.code)
        if math is not None:
            logits = tensor(group.op.results[0]).shape[0] == sym("L")
            used.add((group.func.name, logits, *math.groups()))
    bf16 = next(math for _, _, weight, math in used if weight == "BF16")
    assert used == {
        (phase, logits, "Q8_0", "MathInt8" if (phase, logits) == ("prefill", False) else "MathF32")
        for phase in ("prefill", "decode")
        for logits in (False, True)
    } | {(phase, logits, "BF16", bf16) for phase, logits, weight, _ in used if weight == "BF16"}
    check_steps(module, stored, compiled, 0.05)
    compiled.close()


@pytest.mark.parametrize(
    ("option", "value", "weight", "message"),
    [
        ("compute", "int8", "f32", "compute=int8 is for block-quantised weights"),
        ("compute", "bf16", "q8_0", "compute=bf16 is for bf16 weights"),
        ("prefill_precision", "int8", "bf16", "prefill_precision=int8 is for block-quantised"),
        ("prefill_precision", "bf16", "bf16", "Unknown prefill precision 'bf16'. Known: auto, f32"),
    ],
)
def test_arithmetic_that_no_weight_takes_is_refused(
    option: str, value: str, weight: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nn_models, "INNER", 64)
    module = fused("llama", weight=weight, up_weight=weight)
    select = replace(SelectKernels(), **{option: value})
    with pytest.raises(CompileError, match=message):
        run_passes(module, [select], given={"fused", "kv-planned"})


def test_prefill_precision_is_for_cpus() -> None:
    with pytest.raises(CompileError, match="prefill_precision is for CPU targets"):
        SelectKernels("cuda:sm_80", prefill_precision="int8").options()


def test_gate_and_up_of_different_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn_models, "INNER", 64)
    module = fused("llama", weight="q8_0", up_weight="q4_1")
    stored = random_params(module)
    compiled = Compiled(module, stored, tmp_path, PAGES, compute="f32")
    check_steps(module, stored, compiled, TOLERANCE)
    compiled.close()


def test_without_tvm(tmp_path: Path) -> None:
    module = fused("gemma3")
    stored = random_params(module)
    compiled = Compiled(module, stored, tmp_path, PAGES, tvm=False)
    assert not compiled.generated.row_functions()
    check_steps(module, stored, compiled, TOLERANCE)
    compiled.close()


def test_bf16_cache(tmp_path: Path) -> None:
    module = fused("llama", kv_dtype="bf16")
    stored = random_params(module)
    compiled = Compiled(module, stored, tmp_path, PAGES)
    check_steps(module, stored, compiled, 1e-2)
    compiled.close()


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compiled]:
    """Windows, soft-caps, post-norms, tied embedding; three workers on two cores."""
    module = fused("gemma2")
    folder = tmp_path_factory.mktemp("gemma")
    compiled = Compiled(module, random_params(module), folder, PAGES, threads=3)
    yield compiled
    compiled.close()


def test_result_depends_on_the_sequence_alone(gemma: Compiled) -> None:
    """In one piece, in chunks, token by token, beside another sequence: the same bits."""
    text, other = ids(PAGE + 9, seed=7), ids(11, seed=8)
    rows = range(len(text))

    def run(new: int, cached: int, phase: str) -> np.ndarray:
        step = make_batch(
            [new], [cached], TABLES[:1], PAGE, text[cached : cached + new], range(new)
        )
        return gemma.step(phase, step)

    whole = run(len(text), 0, "prefill")
    chunks = [run(n, c, "prefill") for n, c in ((7, 0), (1, 7), (PAGE, 8), (1, 8 + PAGE))]
    np.testing.assert_array_equal(np.concatenate(chunks), whole)
    single = [run(1, c, "decode") for c in rows]
    np.testing.assert_array_equal(np.concatenate(single), whole)
    both = make_batch(
        [len(other), len(text)], [0, 0], TABLES[::-1], PAGE, [*other, *text],
        range(len(other), len(other) + len(text)),
    )  # fmt: skip
    np.testing.assert_array_equal(gemma.step("prefill", both), whole)


def test_bad_arguments_are_refused(gemma: Compiled) -> None:
    step = batch((3,), (0,), 1)
    arrays = [a.ctypes.data for a in step.arrays()]
    rest = [ctypes.cast(p, ctypes.c_void_p) for p in (gemma.weight_pointers, gemma.cache_pointers)]
    arena, logits = gemma.arena.ctypes.data, np.empty((600, gemma.vocab), np.float32).ctypes.data

    def code(*counts: int, at: int = arena, phase: str = "prefill") -> int:
        args = StepArgs(*counts, *arrays, *rest, at, logits)
        return int(getattr(gemma.library, f"inferc_step_{phase}")(gemma.pool, ctypes.byref(args)))

    assert code(0, 1, 1, 4) == 1 and code(513, 1, 1, 4) == 1
    assert code(3, 65, 1, 4) == 2
    assert code(3, 1, 4, 4) == 3
    assert code(3, 1, 1, 5) == 4
    assert code(3, 1, 1, 4, phase="decode") == 5
    assert code(3, 1, 1, 4, at=arena + 4) == 6


def test_tied_embedding_is_stored_once(gemma: Compiled) -> None:
    names = [item.name for item in gemma.generated.weights.items]
    assert len(set(names)) == len(names)
    tables = [i for i in gemma.generated.weights.items if "embed" in i.name or "head" in i.name]
    assert [t.layout for t in tables] == ["n16"]


def test_layers_share_kernels_and_phases_do_too(gemma: Compiled) -> None:
    prefill, decode = gemma.generated.step.phases
    assert len({c.kernel for c in prefill.calls}) < len(prefill.calls)
    different = {c.kernel for c in prefill.calls} ^ {c.kernel for c in decode.calls}
    assert all(name.startswith("attention_") for name in different)


def test_barriers_only_where_data_flows(gemma: Compiled) -> None:
    prefill = gemma.generated.step.phases[0]
    assert not prefill.calls[0].barrier and not prefill.calls[1].barrier  # embedding, rope table
    assert all(c.barrier for c in prefill.calls if c.kernel.startswith("attention_"))


def test_sources_say_why_they_exist(gemma: Compiled) -> None:
    for source in gemma.generated.sources()[:-1]:
        assert source.text.startswith(f"// {source.file_name.removesuffix('.cpp')}: ")
        assert "// body:" in source.text and "flops:" in source.text
        assert source.text.endswith(source.code) and "/work" not in source.text


def test_generation_is_deterministic() -> None:
    def sources() -> list[tuple[str, str]]:
        module = fused("qwen3")
        select = SelectKernels("cpu:x86-64-v4")
        run_passes(module, [select, PlanMemory()], given={"fused", "kv-planned"})
        options: KernelOptions = select.options()
        return [(s.file_name, s.text) for s in generate(module, options).sources()]

    assert sources() == sources()
