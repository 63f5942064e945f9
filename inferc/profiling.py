"""Profiles of an artifact on the CPU: steps of the engine, measured and joined with the report."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inferc.errors import RequestError
from inferc.ir.cost import Workload
from inferc.report import model, profile, trace
from inferc.report.machines import Machine, uniform
from inferc.runtime.executors.cpu import CpuExecutor
from inferc.runtime.request import SamplingParams
from inferc.runtime.step_profile import StepProfile

if TYPE_CHECKING:
    from inferc.runtime.engine import Engine

_SETTLING_STEPS = 2  # the first steps of a run find cold caches and sleeping workers


@dataclass(frozen=True)
class EngineStep:
    """A step of the library, and the engine's step around it."""

    step: StepProfile
    begin_ns: int
    end_ns: int

    @property
    def phase(self) -> str:
        """`decode` or `prefill`."""
        return "decode" if self.step.decode else "prefill"

    @property
    def measured(self) -> profile.MeasuredStep:
        """As the report takes it."""
        s = self.step
        return profile.MeasuredStep(s.begin_ns, s.end_ns, s.spans_ns, self.begin_ns, self.end_ns)

    def workload(self, page_tokens: int) -> Workload:
        """What the step had to do."""
        s = self.step
        return Workload(s.tokens, s.sequences, s.context_tokens, s.logit_rows, page_tokens)


def profiler_of(engine: Engine) -> CpuExecutor:
    """The engine's executor, if it can be measured. Raises RequestError."""
    executor = engine.executor
    if not isinstance(executor, CpuExecutor):
        raise RequestError(
            "--profile: measures the kernels of a CPU; for a GPU run Nsight Systems with"
            " INFERC_CUDA=nvtx"
        )
    return executor


def measured_machine(executor: CpuExecutor) -> Machine:
    """The limits of this machine, measured now by the step's own workers."""
    limits = executor.measure_limits()
    rates = dict(limits.per_second)
    return uniform("this machine", limits.bytes_per_second, rates.pop("f32"), rates)


def record(
    engine: Engine, concurrency: int, prompt_tokens: int, new_tokens: int, seed: int
) -> list[EngineStep]:
    """Every step of one run with random prompts; the engine must be idle."""
    executor, rng = profiler_of(engine), random.Random(seed)
    params = SamplingParams(max_tokens=new_tokens, ignore_eos=True)
    high = engine.executor.vocab_size
    seen: list[StepProfile] = []
    found = []
    executor.listen(seen.append)
    try:
        for _ in range(concurrency):
            prompt = [rng.randrange(high // 8, high) for _ in range(prompt_tokens)]
            engine.add_request(prompt, params)
        while engine.has_work:
            begin_ns = time.monotonic_ns()
            engine.step()
            end_ns = time.monotonic_ns()
            found += [EngineStep(step, begin_ns, end_ns) for step in seen]
            seen.clear()
    finally:
        executor.listen(None)
    return found


def phases_of(
    report: model.Report, page_tokens: int, machine: Machine, runs: Sequence[Sequence[EngineStep]]
) -> dict[str, profile.PhaseProfile]:
    """Each phase of the runs over its steps of the most common shape, the largest of equal ones."""
    found = {}
    for name in ("prefill", "decode"):
        steps = [step for run in runs for step in _settled(run, name)]
        if steps:
            found[name] = _phase(report, name, page_tokens, machine, steps)
    return found


def _settled(run: Sequence[EngineStep], phase: str) -> Sequence[EngineStep]:
    steps = [step for step in run if step.phase == phase]
    return steps[_SETTLING_STEPS:] if len(steps) > 2 * _SETTLING_STEPS else steps


def _phase(
    report: model.Report, name: str, page_tokens: int, machine: Machine,
    steps: Sequence[EngineStep],
) -> profile.PhaseProfile:  # fmt: skip
    shapes = [(s.step.tokens, s.step.sequences, s.step.logit_rows) for s in steps]
    common = max(set(shapes), key=lambda shape: (shapes.count(shape), shape))
    chosen = [s for s, shape in zip(steps, shapes, strict=True) if shape == common]
    contexts = sorted(s.step.context_tokens for s in chosen)
    tokens, sequences, logit_rows = common
    workload = Workload(tokens, sequences, contexts[len(contexts) // 2], logit_rows, page_tokens)
    return profile.measure(report, name, workload, machine, [step.measured for step in chosen])


def traced(
    report: model.Report, page_tokens: int, machine: Machine, steps: Sequence[EngineStep]
) -> list[trace.TracedStep]:
    """Steps with the predicted costs of their calls, for a trace."""
    found = []
    for step in steps:
        workload = step.workload(page_tokens)
        costs = model.kernel_costs(report, step.phase, workload, machine)
        found.append(trace.TracedStep(step.phase, workload, costs, step.measured))
    return found
