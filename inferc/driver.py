"""The compiler's driver: import, passes, code generation, artifact.

inferc.compile("path/to/model", "model.inferc", target="cpu:native")
inferc.compile(module, "model.inferc", example_ids=ids, context_tokens=2048)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferc.codegen.cache import Cache, default_root
from inferc.codegen.cuda_toolchain import find_cuda_compiler
from inferc.codegen.targets import CudaTarget
from inferc.codegen.toolchain import find_compilers
from inferc.errors import CompileError
from inferc.frontend.importer import ImportedModel, ImportOptions, import_model, import_module
from inferc.frontend.live_options import LiveOptions
from inferc.lowering import lower
from inferc.options import (
    CompileOptions,
    Event,
    Progress,
    for_model,
    resolve_options,
    silent,
)
from inferc.packaging import Package, fill_artifact
from inferc.runtime.artifact import Manifest
from inferc.runtime.artifact_writer import check_output, write_artifact


def compile(
    source: Any,
    output: Path | str,
    *,
    example_ids: Any = None,
    tokenizer: Path | str | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Manifest:
    """Compile a model to an artifact.

    Args:
        source: path of a Hugging Face directory, a GGUF file or an ONNX model; or a torch module
            that takes token ids `[B, S]` (and `positions`, if it likes) and returns logits.
        output: the artifact, a folder that appears when everything in it is complete.
        example_ids: token ids to trace a module with; only their shape matters.
        tokenizer: directory with the tokenizer.json of a module; None for ids only.
        progress: told what is being done.
        **options: fields of `CompileOptions`.

    Raises:
        InfercError: with the reason, and what to do about it.
    """
    tell = progress or silent
    chosen = resolve_options(options)
    if isinstance(source, Path | str):
        if example_ids is not None or tokenizer is not None:
            raise CompileError("example_ids and tokenizer are for torch modules, not for files.")
        read = _Source(str(source), lambda: _read(Path(source), chosen))
    else:
        folder = None if tokenizer is None else Path(tokenizer)
        live = LiveOptions(example_ids, folder, chosen.context_tokens)
        read = _Source(type(source).__name__, lambda: import_module(source, live))
    return _Job(read, Path(output), chosen, tell).run()


@dataclass(frozen=True)
class _Source:
    """A model to be imported, and its name for the progress."""

    name: str
    read: Callable[[], ImportedModel]


def _read(path: Path, options: CompileOptions) -> ImportedModel:
    return import_model(path, ImportOptions(options.context_tokens))


@dataclass(frozen=True)
class _Job:
    source: _Source
    output: Path
    options: CompileOptions
    tell: Progress

    def run(self) -> Manifest:
        """Everything that can be refused is refused before the slow parts."""
        check_output(self.output, overwrite=self.options.overwrite)
        targets = [select.options().target for select in self.options.selects()]
        compilers = find_compilers(targets)
        target = targets[0]
        cuda_compiler = (
            find_cuda_compiler([arch.name for arch in target.archs])
            if isinstance(target, CudaTarget)
            else None
        )
        self.tell(Event("import", self.source.name))
        model = self.source.read()
        for note in model.notes:
            self.tell(Event("note", note))
        options = for_model(self.options, model.module)
        package = Package(
            model=model,
            options=options,
            lowered=lower(model, options, self.tell),
            compilers=compilers,
            cuda_compiler=cuda_compiler,
            cache=Cache(default_root()),
            kernels_done=lambda what, done, total: self.tell(Event("kernels", what, done, total)),
            weights_done=lambda what, done, total: self.tell(Event("weights", what, done, total)),
        )
        self.tell(Event("artifact", str(self.output)))
        return write_artifact(
            self.output,
            lambda folder: fill_artifact(folder, package),
            overwrite=self.options.overwrite,
        )
