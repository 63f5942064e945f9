"""Fills an artifact's folder: step library, packed weights, tokenizer, report; and its manifest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from inferc import __version__
from inferc.codegen.cache import Cache
from inferc.codegen.library import LIBRARY_FILE, Generated, write_library
from inferc.codegen.pack_weights import Progress, write_weights
from inferc.codegen.step import state_arguments
from inferc.codegen.toolchain import Compiler
from inferc.frontend.importer import ImportedModel
from inferc.ir.core import Func, Op
from inferc.ir.types import StateType
from inferc.passes.plan_kv import KvPlan as PlannedKv
from inferc.passes.plan_kv import kv_plan
from inferc.passes.record import PassRecord
from inferc.report import build as report_build
from inferc.report import html as report_html
from inferc.runtime.artifact import (
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


@dataclass(frozen=True)
class Package:
    """Everything that goes into an artifact."""

    model: ImportedModel
    options: Any
    generated: Generated
    records: tuple[PassRecord, ...]
    stages: Mapping[str, str]
    compiler: Compiler
    cache: Cache
    kernels_done: Progress
    weights_done: Progress


def fill_artifact(folder: Path, package: Package) -> Manifest:
    """Write all files of an artifact and return its manifest."""
    target = package.generated.options.target
    write_library(
        package.generated, folder / target.folder, package.compiler, package.cache,
        package.kernels_done,
    )  # fmt: skip
    offsets = _write_weights(folder, package)
    _write_tokenizer(folder, package.model)
    manifest = _manifest(package, offsets)
    report = _report(package, manifest)
    _write(folder / "report.json", json.dumps(report, indent=1, sort_keys=True) + "\n")
    _write(folder / "report.html", report_html.render(report))
    return manifest


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _write_weights(folder: Path, package: Package) -> tuple[int, ...]:
    path = folder / WEIGHTS_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = package.model.tensors
    return write_weights(
        path, package.generated.weights, package.model.module, lambda name: tensors[name].read(),
        lambda name: tensors[name].release(), package.weights_done,
    )  # fmt: skip


def _write_tokenizer(folder: Path, model: ImportedModel) -> None:
    files = model.tokenizer
    if files.tokenizer_json is not None:
        config = json.dumps(dict(files.special.texts), indent=1, sort_keys=True)
        _write(folder / "tokenizer.json", files.tokenizer_json)
        _write(folder / "tokenizer_config.json", config + "\n")
    if files.chat_template is not None:
        _write(folder / "chat_template.jinja", files.chat_template)
    defaults = {k: v for k, v in asdict(files.generation).items() if v is not None}
    _write(folder / "generation.json", json.dumps(defaults, indent=1, sort_keys=True) + "\n")


def _manifest(package: Package, offsets: tuple[int, ...]) -> Manifest:
    generated, special = package.generated, package.model.tokenizer.special
    target, step = generated.options.target, generated.step
    planned = kv_plan(package.model.module.funcs["prefill"])
    return Manifest(
        tool_version=__version__,
        model=ModelFacts(**asdict(package.model.facts)),
        tokens=TokenFacts(special.eos, special.bos, special.pad, special.add_bos),
        targets=(
            TargetEntry(
                target.name, "cpu", target.machine, target.isa, f"{target.folder}/{LIBRARY_FILE}"
            ),
        ),
        limits=Limits(step.step_tokens, step.sequences, package.model.facts.context_tokens),
        kv=_kv(planned),
        memory=MemoryPlan(generated.memory.arena_bytes, generated.weights.weights_bytes),
        weights=PackedWeights(WEIGHTS_FILE, _tensors(package, offsets)),
        states=_states(package.model.module.funcs["prefill"]),
    )


def _kv(planned: PlannedKv) -> KvPlan:
    caches = tuple(
        CacheEntry(c.name, c.kv_heads, c.k_dim, c.v_dim, c.window_tokens) for c in planned.caches
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


def _tensors(package: Package, offsets: tuple[int, ...]) -> tuple[PackedTensor, ...]:
    module = package.model.module
    return tuple(
        PackedTensor(
            item.name, item.layout, item.dtype, item.shape, offset, item.nbytes,
            item.sources(module),
        )
        for item, offset in zip(package.generated.weights.items, offsets, strict=True)
    )  # fmt: skip


def _report(package: Package, manifest: Manifest) -> dict[str, Any]:
    options = {k: v for k, v in asdict(package.options).items() if k not in _UNREPORTED}
    memory = asdict(package.generated.memory)
    memory["weights_bytes"] = manifest.memory.weights_bytes
    target = package.generated.options.target
    facts = report_build.Facts(
        tool_version=__version__,
        model=asdict(manifest.model),
        options=options,
        target={"name": target.name, "machine": target.machine, "isa": list(target.isa)},
        kv=asdict(manifest.kv),
        memory=memory,
        weights=[asdict(tensor) for tensor in manifest.weights.tensors],
    )

    def kernel_of(op: Op) -> report_build.KernelInfo:
        unit = package.generated.unit_of(op)
        source = f"{target.folder}/{unit.file_name}"
        return report_build.KernelInfo(unit.name, unit.definition.name, source)

    records = [record.to_json() for record in package.records]
    return report_build.build(package.model.module, records, facts, kernel_of, package.stages)
