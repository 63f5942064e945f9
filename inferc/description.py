"""What is known of an artifact before its files are made: the manifest and the report."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from inferc import __version__
from inferc.codegen.cuda_step import cuda_scratch_bytes
from inferc.codegen.library import LIBRARY_FILE
from inferc.codegen.pack_weights import tensor_offsets
from inferc.codegen.step import state_arguments
from inferc.codegen.targets import CpuTarget, joined_name
from inferc.codegen.variants import Variant
from inferc.codegen.workspace import scratch_bytes
from inferc.frontend.importer import ImportedModel
from inferc.ir.core import Func, Op
from inferc.ir.types import StateType
from inferc.lowering import Lowered
from inferc.options import CompileOptions
from inferc.passes.plan_kv import KvPlan as PlannedKv
from inferc.passes.plan_kv import kv_plan
from inferc.report import build as report_build
from inferc.runtime.artifact import (
    CUDA_ABI_VERSION,
    CacheEntry,
    KvPlan,
    Limits,
    Manifest,
    MemoryPlan,
    ModelFacts,
    PackedTensor,
    PackedWeights,
    StateEntry,
    TargetEntry,
    TokenFacts,
)

WEIGHTS_FILE = "weights/packed.safetensors"
# Options that do not change what an artifact computes.
_UNREPORTED = ("dump", "overwrite", "check_passes")
# How many threads run a step is chosen at run time; the report gives the scratch of these.
_SCRATCH_THREADS = (1, 8, 64)


def manifest(model: ImportedModel, lowered: Lowered, toolkit: str | None = None) -> Manifest:
    """The manifest, but for the digests of the files. `toolkit`: version of the CUDA compiler."""
    generated, special = lowered.generated, model.tokenizer.special
    step = generated.step
    planned = kv_plan(model.module.funcs["prefill"])
    return Manifest(
        tool_version=__version__,
        model=ModelFacts(**asdict(model.facts)),
        tokens=TokenFacts(special.eos, special.bos, special.pad, special.add_bos),
        targets=tuple(e for v in lowered.variants for e in _targets(v, toolkit)),
        limits=Limits(step.step_tokens, step.sequences, model.facts.context_tokens),
        kv=_kv(planned),
        memory=MemoryPlan(generated.memory.arena_bytes, generated.weights.weights_bytes),
        weights=PackedWeights(WEIGHTS_FILE, _tensors(model, lowered)),
        states=_states(model.module.funcs["prefill"]),
        required=("kv.caches.v_in_k",) if any(c.v_in_k for c in planned.caches) else (),
    )


def _targets(variant: Variant, toolkit: str | None) -> tuple[TargetEntry, ...]:
    """One entry, or one for each architecture of GPUs, with a library that all share."""
    target = variant.generated.options.target
    library = f"{variant.folder}/{LIBRARY_FILE}"
    if isinstance(target, CpuTarget):
        return (TargetEntry(target.name, "cpu", target.machine, target.isa, library),)
    return tuple(
        TargetEntry(
            f"cuda:{arch.name}", "cuda", target.machine, (), library, abi_version=CUDA_ABI_VERSION,
            arch=arch.name, kernels=f"{target.folder}/{arch.name}", toolkit=toolkit,
        )
        for arch in target.archs
    )  # fmt: skip


def _kv(planned: PlannedKv) -> KvPlan:
    caches = tuple(
        CacheEntry(c.name, c.kv_heads, c.k_dim, c.v_dim, c.window_tokens, c.v_in_k)
        for c in planned.caches
    )
    return KvPlan(
        planned.page_tokens, planned.dtype, planned.bytes_per_token, planned.page_bytes, caches
    )


def _states(func: Func) -> tuple[StateEntry, ...]:
    types = {a.hint: a.type for a in state_arguments(func)}
    return tuple(
        StateEntry(name, t.shape, t.dtype, t.nbytes)
        for name, t in types.items()
        if isinstance(t, StateType)
    )


def _tensors(model: ImportedModel, lowered: Lowered) -> tuple[PackedTensor, ...]:
    plan = lowered.generated.weights
    return tuple(
        PackedTensor(
            item.name, item.layout, item.dtype, item.shape, offset, item.nbytes,
            item.sources(model.module),
        )
        for item, offset in zip(plan.items, tensor_offsets(plan), strict=True)
    )  # fmt: skip


def _target_facts(lowered: Lowered) -> dict[str, Any]:
    """Machine, instruction sets and kernels of a report are those of the first target."""
    targets = [variant.generated.options.target for variant in lowered.variants]
    first = targets[0]
    return {
        "name": joined_name(targets),
        "kernels_of": first.name,
        "machine": first.machine,
        "isa": list(first.isa),
    }


def report(
    model: ImportedModel, options: CompileOptions, lowered: Lowered, manifest: Manifest
) -> dict[str, Any]:
    """The report as plain data: what `inspect` shows."""
    generated = lowered.generated
    target = generated.options.target
    chosen = {k: v for k, v in asdict(options).items() if k not in _UNREPORTED}
    memory = asdict(generated.memory)
    memory["weights_bytes"] = manifest.memory.weights_bytes
    if target.kind == "cuda":
        memory["device_scratch_bytes"] = cuda_scratch_bytes(generated.units)
    else:
        memory["scratch_bytes"] = {
            str(threads): scratch_bytes(generated.step, threads) for threads in _SCRATCH_THREADS
        }
    facts = report_build.Facts(
        tool_version=__version__,
        model=asdict(manifest.model),
        options=chosen,
        target=_target_facts(lowered),
        kv=asdict(manifest.kv),
        states=[asdict(state) for state in manifest.states],
        memory=memory,
        weights=[asdict(tensor) for tensor in manifest.weights.tensors],
    )

    def kernel_of(op: Op) -> report_build.KernelInfo:
        group, unit = generated.units.of_op[op]
        source = f"{lowered.variants[0].folder}/{unit.file_name}"
        return report_build.KernelInfo(
            unit.name, unit.definition.name, source, unit.definition.cost(group),
            unit.definition.arithmetic(group, generated.options),
        )  # fmt: skip

    records = [record.to_json() for record in lowered.records]
    return report_build.build(model.module, records, facts, kernel_of, lowered.stages)
