"""What variants of one artifact must share is compared, and a difference refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from inferc.codegen import variants
from inferc.codegen.kernel import KernelOptions
from inferc.codegen.kernels.linear import LINEAR
from inferc.codegen.library import Generated
from inferc.codegen.registry import choose
from inferc.codegen.select import SelectKernels
from inferc.codegen.targets import parse_targets
from inferc.codegen.variants import generate_variants
from inferc.errors import CompileError
from inferc.ir.core import Module
from inferc.passes.manager import run_passes
from inferc.passes.plan_memory import PlanMemory
from tests.codegen.test_step import fused

SPEC = "cpu:x86-64-v3,x86-64-v4+vnni+bf16,armv8.2-a+bf16"


def planned() -> tuple[Module, list[KernelOptions]]:
    """A module with kernels and offsets, and options for each target of SPEC."""
    module = fused("llama", weight="bf16")
    options = [KernelOptions(target, use_tvm=False) for target in parse_targets(SPEC)]
    select = SelectKernels(options[0].target.name, tvm=False)
    run_passes(module, [select, PlanMemory()], given={"fused", "kv-planned"})
    return module, options


def test_only_code_differs() -> None:
    module, options = planned()
    wide, narrow, arm = generate_variants(module, options)
    assert [v.folder for v in (wide, narrow, arm)] == [
        "cpu/x86-64-v4+vnni+bf16", "cpu/x86-64-v3", "cpu/armv8.2-a+bf16",
    ]  # fmt: skip
    codes = [{s.code for s in v.generated.sources()} for v in (wide, narrow, arm)]
    assert any("MathBf16" in code for code in codes[0])
    assert not any("MathBf16" in code for code in codes[1])
    assert codes[0] == codes[2]
    assert generate_variants(module, options[:1])[0].folder == "cpu"


def with_more_weights(made: Generated) -> Generated:
    items = made.weights.items
    return replace(made, weights=replace(made.weights, items=(*items, items[0])))


def with_more_memory(made: Generated) -> Generated:
    return replace(made, memory=replace(made.memory, arena_bytes=made.memory.arena_bytes + 64))


def with_more_scratch(made: Generated) -> Generated:
    return replace(made, step=replace(made.step, shared_scratch=("64",)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_more_weights, "the packed weights differ"),
        (with_more_memory, "the memory plan differ"),
        (with_more_scratch, "calls, sizes or scratch differ"),
    ],
)
def test_other_plans_are_refused(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Generated], Generated], message: str
) -> None:
    module, options = planned()
    real = variants.generate

    def generate(module: Module, options: KernelOptions) -> Generated:
        made = real(module, options)
        return change(made) if options.target.name == "cpu:x86-64-v3" else made

    monkeypatch.setattr(variants, "generate", generate)
    with pytest.raises(CompileError, match=rf"v3 cannot share an artifact: .*{message}"):
        generate_variants(module, options)


def test_another_kernel_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module, options = planned()

    def chosen(group: Any, options: KernelOptions) -> Any:
        kernel = choose(group, options)
        is_linear = kernel is LINEAR and options.target.name == "cpu:x86-64-v3"
        return replace(kernel, name="other") if is_linear else kernel

    monkeypatch.setattr(variants, "choose", chosen)
    with pytest.raises(CompileError, match="kernel 'linear' becomes 'other'"):
        generate_variants(module, options)
