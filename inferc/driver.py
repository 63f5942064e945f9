"""The compiler's driver: import, passes, code generation, artifact.

inferc.compile("path/to/model", "model.inferc", target="cpu:native")
inferc.compile(module, "model.inferc", example_ids=ids, context_tokens=2048)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from inferc.codegen.cache import Cache, default_root
from inferc.codegen.kernel import KernelOptions
from inferc.codegen.library import generate
from inferc.codegen.row_objects import tvm_installed
from inferc.codegen.select import SelectKernels
from inferc.codegen.targets import parse_target
from inferc.codegen.toolchain import Compiler, find_compiler
from inferc.errors import CompileError
from inferc.frontend.importer import ImportedModel, ImportOptions, import_model, import_module
from inferc.frontend.live_options import LiveOptions
from inferc.packaging import Package, fill_artifact
from inferc.passes.check import CheckTranslation
from inferc.passes.instruments import CheckFacts, Dump, Instrument, StageTexts, Verify
from inferc.passes.manager import run_passes
from inferc.passes.pipeline import PipelineOptions, phase_ends, pipeline
from inferc.passes.plan_memory import PlanMemory
from inferc.passes.record import PassRecord
from inferc.runtime.artifact import Manifest
from inferc.runtime.artifact_writer import check_output, write_artifact


@dataclass(frozen=True)
class CompileOptions:
    """Every choice of a compilation.

    Attributes:
        target: see `inferc targets`.
        compute: arithmetic of matrix products. `auto`: bf16 dot products for bf16 weights where the
            target has them, else float32; `int8` rounds activations and needs quantised weights.
        kv_dtype: type of stored keys and values: f32, bf16 or f16.
        page_tokens: tokens of a KV page: 16, 32, 48 or 64.
        step_tokens: most rows of one step.
        sequences: most sequences of one step.
        context_tokens: longest sequence; None for the model's own limit. It costs no memory before
            it is used, but decides which factors a longrope model uses.
        tvm: lower row kernels by TVM; None if it is installed.
        check_passes: verify module and facts after every pass, and interpret it before and after.
        dump: folder for the module after every pass.
        overwrite: replace an artifact that is there.
    """

    target: str = "cpu:native"
    compute: str = "auto"
    kv_dtype: str = "f32"
    page_tokens: int = 32
    step_tokens: int = 512
    sequences: int = 64
    context_tokens: int | None = None
    tvm: bool | None = None
    check_passes: bool = False
    dump: Path | None = None
    overwrite: bool = False


@dataclass(frozen=True)
class Event:
    """Progress: `done` of `total` (0: unknown) in a stage; bytes in the stage `weights`."""

    stage: str
    detail: str
    done: int = 0
    total: int = 0


Progress = Callable[[Event], None]


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
    tell = progress or (lambda event: None)
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


def resolve_options(options: dict[str, Any]) -> CompileOptions:
    """Options with the target named and TVM decided. Raises CompileError for a bad one."""
    unknown = sorted(set(options) - set(CompileOptions.__dataclass_fields__))
    if unknown:
        known = ", ".join(CompileOptions.__dataclass_fields__)
        raise CompileError(f"Unknown option '{unknown[0]}'. Options: {known}.")
    chosen = CompileOptions(**options)
    for name, least in (("step_tokens", 1), ("sequences", 1), ("context_tokens", 1)):
        value = getattr(chosen, name)
        if value is not None and value < least:
            raise CompileError(f"Option {name}: expected {least} or more, found {value}.")
    return replace(
        chosen,
        target=parse_target(chosen.target).name,
        tvm=tvm_installed() if chosen.tvm is None else chosen.tvm,
    )


@dataclass(frozen=True)
class _Job:
    source: _Source
    output: Path
    options: CompileOptions
    tell: Progress

    def run(self) -> Manifest:
        """Everything that can be refused is refused before the slow parts."""
        check_output(self.output, overwrite=self.options.overwrite)
        compiler, select = find_compiler(), self._select()
        kernel_options = select.options()
        self.tell(Event("import", self.source.name))
        model = self.source.read()
        records, stages = self._passes(model, select)
        package = self._package(model, kernel_options, records, stages, compiler)
        self.tell(Event("artifact", str(self.output)))
        return write_artifact(
            self.output,
            lambda folder: fill_artifact(folder, package),
            overwrite=self.options.overwrite,
        )

    def _select(self) -> SelectKernels:
        options = self.options
        return SelectKernels(options.target, options.compute, bool(options.tvm))

    def _passes(
        self, model: ImportedModel, select: SelectKernels
    ) -> tuple[list[PassRecord], dict[str, str]]:
        options = self.options
        limits = PipelineOptions(
            step_tokens=options.step_tokens,
            sequences=options.sequences,
            context_tokens=model.facts.context_tokens,
            page_tokens=options.page_tokens,
            kv_dtype=options.kv_dtype,
        )
        stages = {index: phase.stage for index, phase in phase_ends().items()}
        texts = StageTexts({i: stage for i, stage in stages.items() if stage == "nn"})
        instruments: list[Instrument] = [_Tell(self.tell), texts]
        translation = CheckTranslation()
        if options.check_passes:
            instruments += [Verify(options.dump, stages), CheckFacts(), translation]
        if options.dump is not None:
            instruments.append(Dump(options.dump))
        passes = [*pipeline(limits), select, PlanMemory()]
        records = run_passes(model.module, passes, instruments=instruments)
        if options.check_passes:
            self.tell(Event("check", _worst(translation)))
        return records, texts.texts

    def _package(
        self,
        model: ImportedModel,
        kernel_options: KernelOptions,
        records: list[PassRecord],
        stages: dict[str, str],
        compiler: Compiler,
    ) -> Package:
        return Package(
            model=model,
            options=self.options,
            generated=generate(model.module, kernel_options),
            records=tuple(records),
            stages=stages,
            compiler=compiler,
            cache=Cache(default_root()),
            kernels_done=lambda what, done, total: self.tell(Event("kernels", what, done, total)),
            weights_done=lambda what, done, total: self.tell(Event("weights", what, done, total)),
        )


def _worst(check: CheckTranslation) -> str:
    return (
        f"{len(check.results)} passes changed the module and were interpreted before and after; "
        f"largest relative error of the logits {check.worst:.1e}"
    )


class _Tell:
    """Reports passes as progress."""

    def __init__(self, tell: Progress) -> None:
        self.tell = tell

    def before(self, module: Any, pass_: Any) -> None:
        """Name the pass."""
        self.tell(Event("passes", pass_.name))

    def after(self, module: Any, pass_: Any, record: Any) -> None:
        """Nothing to do."""
