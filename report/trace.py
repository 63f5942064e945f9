"""Measured steps as a trace for ui.perfetto.dev or chrome://tracing.

Trace Event Format: complete events ("X") in microseconds. One row is the engine's Python thread,
one each worker of the step; kernels lie within their step, and waiting between them. An arrow
("s", "f") leads from the engine's call of the library to the step on each worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from inferc.ir.cost import Workload
from inferc.report.model import KernelCost
from inferc.report.profile import NS_PER_US, MeasuredStep

Event = dict[str, Any]
_PROCESS = 1
_ENGINE = 0
_SHORTEST_WAIT_NS = 200  # below it is the clock itself


@dataclass(frozen=True)
class TracedStep:
    """A step, what it was, and the predicted costs of its calls."""

    phase: str
    workload: Workload
    costs: Sequence[KernelCost]
    step: MeasuredStep


def trace(steps: Sequence[TracedStep], process: str) -> Mapping[str, Any]:
    """The whole file as plain data; times count from the first step. Needs one step at least."""
    origin_ns = min(s.step.outer_begin_ns for s in steps)
    workers = max(len(s.step.spans_ns) for s in steps)
    events = list(_names(process, workers))
    for number, traced in enumerate(steps):
        events += _Writer(traced, number, origin_ns).events()
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _names(process: str, workers: int) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": _PROCESS, "args": {"name": process}}
    threads = ["engine (Python)", *(f"worker {w}" for w in range(workers))]
    for tid, name in enumerate(threads):
        where = {"ph": "M", "pid": _PROCESS, "tid": tid}
        yield {**where, "name": "thread_name", "args": {"name": name}}
        yield {**where, "name": "thread_sort_index", "args": {"sort_index": tid}}


@dataclass(frozen=True)
class _Writer:
    traced: TracedStep
    number: int
    origin_ns: int

    def events(self) -> Iterator[Event]:
        step, workload = self.traced.step, self.traced.workload
        title = f"{self.traced.phase}: {workload.tokens} rows, {workload.sequences} sequences"
        sizes = {
            "step": self.number, "tokens": workload.tokens, "sequences": workload.sequences,
            "context_tokens": workload.context_tokens,
        }  # fmt: skip
        outer = (step.outer_begin_ns, step.outer_end_ns)
        inner = (step.begin_ns, step.end_ns)
        yield self._span("step", "engine", _ENGINE, *outer, sizes)
        yield self._span("library", "engine", _ENGINE, *inner, sizes)
        yield self._arrow("s", _ENGINE)
        for worker, spans in enumerate(step.spans_ns):
            yield self._span(title, "step", worker + 1, *inner, sizes)
            yield self._arrow("f", worker + 1)
            yield from self._calls(worker + 1, spans)

    def _calls(self, tid: int, spans: np.ndarray) -> Iterator[Event]:
        before = self.traced.step.begin_ns
        for cost, (begin, end) in zip(self.traced.costs, spans.tolist(), strict=True):
            yield from self._wait(tid, before, begin, cost.name)
            about = {
                "kernel": cost.kernel, "modules": ", ".join(cost.modules),
                "bytes": cost.bytes_moved, "flops": cost.flops,
                "predicted_us": cost.predicted_us,
            }  # fmt: skip
            yield self._span(cost.name, cost.kind, tid, begin, end, about)
            before = end
        yield from self._wait(tid, before, self.traced.step.end_ns, "the end of the step")

    def _wait(self, tid: int, begin_ns: int, end_ns: int, before: str) -> Iterator[Event]:
        if end_ns - begin_ns >= _SHORTEST_WAIT_NS:
            yield self._span("wait", "wait", tid, begin_ns, end_ns, {"before": before})

    def _span(
        self, name: str, category: str, tid: int, begin_ns: int, end_ns: int, args: Event
    ) -> Event:
        return {
            "ph": "X", "name": name, "cat": category, "pid": _PROCESS, "tid": tid,
            "ts": self._us(begin_ns), "dur": (end_ns - begin_ns) / NS_PER_US, "args": args,
        }  # fmt: skip

    def _arrow(self, kind: str, tid: int) -> Event:
        binding = {"bp": "e"} if kind == "f" else {}
        return {
            "ph": kind, "name": "call", "cat": "call", "id": self.number, "pid": _PROCESS,
            "tid": tid, "ts": self._us(self.traced.step.begin_ns), **binding,
        }  # fmt: skip

    def _us(self, time_ns: int) -> float:
        return (time_ns - self.origin_ns) / NS_PER_US
