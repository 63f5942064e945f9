"""Options of a compilation, and what is told while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from inferc.codegen.kernels.rope_append import PAGE_ELEMENTS
from inferc.codegen.row_objects import tvm_installed
from inferc.codegen.select import SelectKernels
from inferc.codegen.targets import joined_name, parse_targets
from inferc.errors import CompileError
from inferc.ir.core import Module
from inferc.ir.types import TensorType


@dataclass(frozen=True)
class CompileOptions:
    """Every choice of a compilation.

    Attributes:
        target: see `inferc targets`; several CPUs joined by commas give one artifact, whose loader
            takes the most capable that the processor can run.
        compute: arithmetic of matrix products. `auto`: bf16 dot products for bf16 weights where the
            target has them, int16 for quantised weights on x86, else float32. `int16` and `int8`
            round activations (a scale for each 32; 16 bits lose about what float32 sums lose) and
            need quantised weights.
        kv_dtype: type of stored keys and values: f32, bf16, f16, i8 (with a scale for each token
            and KV head), and on a GPU f8e4m3 (rounded as they are, without scales).
            `auto`: bf16; on a CPU f32 where most of the model's matrices are stored as f32.
        page_tokens: tokens of a KV page: 16, 32, 48 or 64.
        step_tokens: most rows of one step.
        sequences: most sequences of one step.
        context_tokens: longest sequence; None for the model's own limit. It costs no memory before
            it is used, but decides which factors a longrope model uses.
        fast_prefill: CUDA: products and attention of many rows by the fastest instructions (wgmma
            on sm_90a). Their sums have an order of their own, so what a token gets then depends, in
            the last bits, on how many rows its step has.
        prefill_precision: CPU: arithmetic of the products of prompts. `auto`: that of `compute`;
            `f32`; `int16` and `int8` round activations, for weights that are integers times a
            scale. Where it differs from `compute`, a token's bits depend on whether its step was
            one of decode.
        tvm: lower row kernels by TVM; None if it is installed.
        check_passes: verify module and facts after every pass, and interpret it before and after.
        dump: folder for the module after every pass.
        overwrite: replace an artifact that is there.
    """

    target: str = "cpu:native"
    compute: str = "auto"
    kv_dtype: str = "auto"
    page_tokens: int = 32
    step_tokens: int = 512
    sequences: int = 64
    context_tokens: int | None = None
    fast_prefill: bool = False
    prefill_precision: str = "auto"
    tvm: bool | None = None
    check_passes: bool = False
    dump: Path | None = None
    overwrite: bool = False

    def selects(self) -> tuple[SelectKernels, ...]:
        """The pass that chooses kernels, for each target; the most capable first."""
        return tuple(
            SelectKernels(
                target.name, self.compute, bool(self.tvm), self.fast_prefill, self.prefill_precision
            )
            for target in parse_targets(self.target)
        )


@dataclass(frozen=True)
class Event:
    """Progress: `done` of `total` (0: unknown) in a stage; bytes in the stage `weights`.

    The stage `note` is what the user should know of the model, once a note.
    """

    stage: str
    detail: str
    done: int = 0
    total: int = 0


Progress = Callable[[Event], None]


def silent(event: Event) -> None:
    """Progress that nobody wants to hear of."""


def resolve_options(options: dict[str, Any]) -> CompileOptions:
    """Options with the target named and TVM decided. Raises CompileError for a bad one.

    On a CPU `kv_dtype` may stay `auto`, for for_model().
    """
    unknown = sorted(set(options) - set(CompileOptions.__dataclass_fields__))
    if unknown:
        known = ", ".join(CompileOptions.__dataclass_fields__)
        raise CompileError(f"Unknown option '{unknown[0]}'. Options: {known}.")
    chosen = CompileOptions(**options)
    for name, least in (("step_tokens", 1), ("sequences", 1), ("context_tokens", 1)):
        value = getattr(chosen, name)
        if value is not None and value < least:
            raise CompileError(f"Option {name}: expected {least} or more, found {value}.")
    targets = parse_targets(chosen.target)
    kind = targets[0].kind
    kv_dtype = chosen.kv_dtype
    if kv_dtype == "auto" and kind == "cuda":
        kv_dtype = "bf16"
    elif kv_dtype != "auto" and kv_dtype not in PAGE_ELEMENTS[kind]:
        known = ", ".join(PAGE_ELEMENTS[kind])
        raise CompileError(
            f"KV dtype '{kv_dtype}' is not supported for {joined_name(targets)}: choose one of"
            f" {known}."
        )
    return replace(
        chosen,
        target=joined_name(targets),
        kv_dtype=kv_dtype,
        tvm=tvm_installed() if chosen.tvm is None else chosen.tvm,
    )


def for_model(options: CompileOptions, module: Module) -> CompileOptions:
    """Resolved options with that decided which depends on the imported model: `kv_dtype`."""
    if options.kv_dtype != "auto":
        return options
    return replace(options, kv_dtype="f32" if _mostly_f32(module) else "bf16")


def _mostly_f32(module: Module) -> bool:
    """Whether at least half the numbers of the matrices are stored in 32 bits or more."""
    wide = total = 0
    for func in module:
        for op in func.params().values():
            type_ = op.result.type
            if isinstance(type_, TensorType) and type_.rank > 1 and isinstance(type_.elements, int):
                total += type_.elements
                wide += type_.elements if type_.dtype in ("f32", "f64") else 0
    return 2 * wide >= total
