"""Fills an artifact's folder: step library, packed weights, tokenizer, report; and its manifest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from inferc import description, report_file
from inferc.codegen.cache import Cache
from inferc.codegen.cuda_toolchain import CudaCompiler, release
from inferc.codegen.library import write_library
from inferc.codegen.pack_weights import Progress, write_weights
from inferc.codegen.toolchain import Compiler
from inferc.codegen.variants import Variant
from inferc.frontend.importer import ImportedModel
from inferc.lowering import Lowered
from inferc.options import CompileOptions
from inferc.report import html as report_html
from inferc.runtime.artifact import Manifest
from inferc.runtime.tokenizer import RULES, VOCABULARY, WHOLE
from inferc.runtime.vocabulary_writer import split_tokenizer


@dataclass(frozen=True)
class Package:
    """Everything that goes into an artifact. A compiler for each machine of the targets."""

    model: ImportedModel
    options: CompileOptions
    lowered: Lowered
    compilers: Mapping[str, Compiler]
    cuda_compiler: CudaCompiler | None
    cache: Cache
    kernels_done: Progress
    weights_done: Progress


def fill_artifact(folder: Path, package: Package) -> Manifest:
    """Write all files of an artifact and return its manifest."""
    model, lowered = package.model, package.lowered
    for variant in lowered.variants:
        _write_library(folder, package, variant)
    _write_weights(folder, package)
    _write_tokenizer(folder, model)
    toolkit = None if package.cuda_compiler is None else release(package.cuda_compiler.version)
    manifest = description.manifest(model, lowered, toolkit)
    report = description.report(model, package.options, lowered, manifest)
    (folder / report_file.REPORT_FILE).write_bytes(report_file.encode(report))
    _write(folder / "report.html", report_html.render(report))
    return manifest


def _write_library(folder: Path, package: Package, variant: Variant) -> None:
    target = variant.generated.options.target
    tell = package.kernels_done
    if len(package.lowered.variants) > 1:
        tell = partial(_named_progress, package.kernels_done, target.name)
    write_library(
        variant.generated, folder / variant.folder, package.compilers[target.machine],
        package.cache, tell, package.cuda_compiler,
    )  # fmt: skip


def _named_progress(tell: Progress, name: str, what: str, done: int, total: int) -> None:
    tell(f"{name} {what}", done, total)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _write_weights(folder: Path, package: Package) -> None:
    path = folder / description.WEIGHTS_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = package.model.tensors
    write_weights(
        path, package.lowered.generated.weights, package.model.module,
        lambda name: tensors[name].read(), lambda name: tensors[name].release(),
        package.weights_done, lambda name: tensors[name].entry_reader(),
    )  # fmt: skip


def _write_tokenizer(folder: Path, model: ImportedModel) -> None:
    files = model.tokenizer
    if files.tokenizer_json is not None:
        config = json.dumps(dict(files.special.texts), indent=1, sort_keys=True)
        split = split_tokenizer(files.tokenizer_json)
        if split is None:
            _write(folder / WHOLE, files.tokenizer_json)
        else:
            _write(folder / RULES, split.rules)
            (folder / VOCABULARY).write_bytes(split.vocabulary)
        _write(folder / "tokenizer_config.json", config + "\n")
    if files.chat_template is not None:
        _write(folder / "chat_template.jinja", files.chat_template)
    defaults = {k: v for k, v in asdict(files.generation).items() if v is not None}
    _write(folder / "generation.json", json.dumps(defaults, indent=1, sort_keys=True) + "\n")
