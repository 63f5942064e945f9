"""Measured steps beside the prediction: spans of kernel calls joined with the report's kernels.

The time of a step is cut at the moments when the last worker ends a call: what lies between two
such moments is the elapsed time of the later call. The parts add up to the step, whatever workers
wait for. Beside it stand the slowest worker's own time in the kernel, the sum over workers, and the
time that workers waited before the call (barriers, and whatever kept them from beginning).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inferc.errors import ArtifactError
from inferc.ir.cost import Workload
from inferc.report.machines import Machine
from inferc.report.model import KernelCost, Report, kernel_costs

Spans = npt.NDArray[np.int64]
NS_PER_US = 1e3


@dataclass(frozen=True)
class MeasuredStep:
    """One step: nanoseconds of one clock, `spans_ns` of shape [worker, call, begin and end].

    `outer_begin_ns` to `outer_end_ns` is the step of the engine around the library's.
    """

    begin_ns: int
    end_ns: int
    spans_ns: Spans
    outer_begin_ns: int
    outer_end_ns: int


@dataclass(frozen=True)
class CallTimes:
    """Medians over steps, in microseconds; `wait_us` and `sum_us` are sums over workers."""

    elapsed_us: float
    slowest_us: float
    sum_us: float
    wait_us: float


@dataclass(frozen=True)
class CallProfile:
    """One kernel call of a phase: what it is, what was predicted, what was measured."""

    cost: KernelCost
    times: CallTimes
    share: float
    """Of the step's time in the library: the mean over steps of each step's share."""


@dataclass(frozen=True)
class KindProfile:
    """All calls of one kind of kernel. Sums of what the calls have."""

    kind: str
    calls: int
    bytes_moved: int
    flops: int
    predicted_us: float
    times: CallTimes
    share: float


@dataclass(frozen=True)
class PhaseProfile:
    """A phase under one workload.

    Attributes:
        steps: how many steps the medians are over.
        step_us: the engine's whole step: plan, library, sampling, commit.
        library_us: the part inside the library.
        start_us: from the library's begin to the first call's.
        end_wait_us: waiting of workers for the last one, summed.
        wait_share: of the workers' time in the library what went to waiting; mean over steps.
        predicted_us: the sum of the predictions.
    """

    phase: str
    workload: Workload
    workers: int
    steps: int
    step_us: float
    library_us: float
    start_us: float
    end_wait_us: float
    wait_share: float
    predicted_us: float
    calls: tuple[CallProfile, ...]

    def kinds(self) -> tuple[KindProfile, ...]:
        """Calls by kind, the longest first."""
        found: dict[str, list[CallProfile]] = {}
        for call in self.calls:
            found.setdefault(call.cost.kind, []).append(call)
        made = [_kind(kind, calls) for kind, calls in found.items()]
        return tuple(sorted(made, key=lambda kind: -kind.times.elapsed_us))


def measure(
    report: Report,
    phase: str,
    workload: Workload,
    machine: Machine,
    steps: Sequence[MeasuredStep],
) -> PhaseProfile:
    """Join steps of one shape with the report. Raises ArtifactError if their calls differ."""
    costs = kernel_costs(report, phase, workload, machine)
    calls = steps[0].spans_ns.shape[1]
    if calls != len(costs):
        raise ArtifactError(
            f"the report lists {len(costs)} kernels of {phase}, and the step library has {calls};"
            " compile the model again."
        )
    library_us = _median([(s.end_ns - s.begin_ns) / NS_PER_US for s in steps])
    tables = [_call_times(step) for step in steps]
    times = [CallTimes(*map(float, row)) for row in np.median(tables, axis=0) / NS_PER_US]
    took_ns = [max(s.end_ns - s.begin_ns, 1) for s in steps]
    shares = np.mean([t[:, 0] / ns for t, ns in zip(tables, took_ns, strict=True)], axis=0)
    return PhaseProfile(
        phase,
        workload,
        steps[0].spans_ns.shape[0],
        len(steps),
        _median([(s.outer_end_ns - s.outer_begin_ns) / NS_PER_US for s in steps]),
        library_us,
        _median([(s.spans_ns[:, 0, 0].min() - s.begin_ns) / NS_PER_US for s in steps]),
        _median([_end_wait(s) / NS_PER_US for s in steps]),
        float(np.mean([_wait_share(s) for s in steps])),
        sum(cost.predicted_us for cost in costs),
        tuple(CallProfile(*call) for call in zip(costs, times, map(float, shares), strict=True)),
    )


def _call_times(step: MeasuredStep) -> npt.NDArray[np.float64]:
    """`[call, (elapsed, slowest, sum, wait)]` of one step, in nanoseconds."""
    begin, end = step.spans_ns[:, :, 0], step.spans_ns[:, :, 1]
    first = begin[:, 0].min()
    done = end.max(axis=0)
    elapsed = np.diff(done, prepend=first)
    before = np.concatenate([np.full((len(end), 1), first), end[:, :-1]], axis=1)
    own = end - begin
    columns = (elapsed, own.max(axis=0), own.sum(axis=0), (begin - before).sum(axis=0))
    return np.stack(columns, axis=1).astype(np.float64)


def _end_wait(step: MeasuredStep) -> float:
    last = step.spans_ns[:, -1, 1]
    return float((last.max() - last).sum())


def _wait_share(step: MeasuredStep) -> float:
    """What is not inside a kernel, of all workers' time in the library."""
    spans = step.spans_ns
    inside = float((spans[:, :, 1] - spans[:, :, 0]).sum())
    return 1.0 - inside / (len(spans) * max(step.end_ns - step.begin_ns, 1))


def _kind(kind: str, calls: Sequence[CallProfile]) -> KindProfile:
    times = [call.times for call in calls]
    return KindProfile(
        kind,
        len(calls),
        sum(call.cost.bytes_moved for call in calls),
        sum(call.cost.flops for call in calls),
        sum(call.cost.predicted_us for call in calls),
        CallTimes(
            sum(t.elapsed_us for t in times),
            sum(t.slowest_us for t in times),
            sum(t.sum_us for t in times),
            sum(t.wait_us for t in times),
        ),
        sum(call.share for call in calls),
    )


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))


def to_json(profile: PhaseProfile) -> Mapping[str, object]:
    """Plain data: every call with its modules, and the kinds."""
    w = profile.workload
    return {
        "phase": profile.phase,
        "tokens": w.tokens, "sequences": w.sequences, "context_tokens": w.context_tokens,
        "workers": profile.workers, "steps": profile.steps,
        "step_us": profile.step_us, "library_us": profile.library_us,
        "start_us": profile.start_us, "end_wait_us": profile.end_wait_us,
        "wait_share": profile.wait_share, "predicted_us": profile.predicted_us,
        "kinds": [_kind_json(kind) for kind in profile.kinds()],
        "calls": [_call_json(call) for call in profile.calls],
    }  # fmt: skip


def _call_json(call: CallProfile) -> Mapping[str, object]:
    cost = call.cost
    return {
        "name": cost.name, "kernel": cost.kernel, "kind": cost.kind,
        "modules": list(cost.modules), "bytes_moved": cost.bytes_moved, "flops": cost.flops,
        "bound": cost.bound, "predicted_us": cost.predicted_us, **vars(call.times),
        "share": call.share,
    }  # fmt: skip


def _kind_json(kind: KindProfile) -> Mapping[str, object]:
    return {
        "kind": kind.kind, "calls": kind.calls, "bytes_moved": kind.bytes_moved,
        "flops": kind.flops, "predicted_us": kind.predicted_us, **vars(kind.times),
        "share": kind.share,
    }  # fmt: skip
