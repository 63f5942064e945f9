"""From an imported model to planned code: all passes, then everything that code generation decides.

Nothing is compiled and no weight is read here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inferc.codegen.library import Generated
from inferc.codegen.variants import Variant, generate_variants
from inferc.frontend.importer import ImportedModel
from inferc.options import CompileOptions, Event, Progress
from inferc.passes.check import CheckTranslation
from inferc.passes.instruments import CheckFacts, Dump, Instrument, StageTexts, Verify
from inferc.passes.manager import run_passes
from inferc.passes.pipeline import PipelineOptions, phase_ends, pipeline
from inferc.passes.plan_memory import PlanMemory
from inferc.passes.record import PassRecord


@dataclass(frozen=True)
class Lowered:
    """What passes and code generation made of a model's module, which they changed in place.

    Attributes:
        variants: kernels, packed weights, step functions, memory: for each target, the most
            capable first.
        records: one a pass.
        stages: text of the module at earlier stages, by name.
    """

    variants: tuple[Variant, ...]
    records: tuple[PassRecord, ...]
    stages: Mapping[str, str]

    @property
    def generated(self) -> Generated:
        """That of the first target. Other targets differ in the code of kernels only."""
        return self.variants[0].generated


def lower(model: ImportedModel, options: CompileOptions, tell: Progress) -> Lowered:
    """Run all passes and plan the code. Raises CompileError."""
    selects = options.selects()
    stages = {index: phase.stage for index, phase in phase_ends().items()}
    texts = StageTexts({i: stage for i, stage in stages.items() if stage == "nn"})
    instruments: list[Instrument] = [_Tell(tell), texts]
    translation = CheckTranslation()
    if options.check_passes:
        instruments += [Verify(options.dump, stages), CheckFacts(), translation]
    if options.dump is not None:
        instruments.append(Dump(options.dump))
    passes = [*pipeline(_limits(model, options)), selects[0], PlanMemory()]
    records = run_passes(model.module, passes, instruments=instruments)
    if options.check_passes:
        tell(Event("check", _worst(translation)))
    variants = generate_variants(model.module, [select.options() for select in selects])
    return Lowered(variants, tuple(records), texts.texts)


def _limits(model: ImportedModel, options: CompileOptions) -> PipelineOptions:
    return PipelineOptions(
        step_tokens=options.step_tokens,
        sequences=options.sequences,
        context_tokens=model.facts.context_tokens,
        page_tokens=options.page_tokens,
        kv_dtype=options.kv_dtype,
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
