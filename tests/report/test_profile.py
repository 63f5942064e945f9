"""Spans of kernel calls joined with a report: sums, shares, the trace, and what is saved."""

from __future__ import annotations

import io
import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from sample_report import report

from inferc.errors import ArtifactError
from inferc.ir.cost import Workload
from inferc.report import profile, profile_table, saved_profile
from inferc.report.machines import uniform
from inferc.report.model import kernel_costs
from inferc.report.profile import MeasuredStep
from inferc.report.trace import TracedStep, trace

WORKLOAD = Workload(2, 2, 24, page_tokens=8)
MACHINE = uniform("here", 10e9, 100e9)
WORKERS = 2
CALLS = 13


def step(seed: int, calls: int = CALLS) -> MeasuredStep:
    """Workers run calls of random length and meet before each, with ten nanoseconds between."""
    rng = np.random.default_rng(seed)
    begin = at = 1_000_000 * (seed + 1)
    spans = np.zeros((WORKERS, calls, 2), np.int64)
    at += 500
    for call in range(calls):
        own = rng.integers(100, 5000, WORKERS)
        spans[:, call, 0], spans[:, call, 1] = at, at + own
        at += int(own.max()) + 10
    return MeasuredStep(begin, at + 90, spans, begin - 2000, at + 3090)


def measured(*steps: MeasuredStep) -> profile.PhaseProfile:
    return profile.measure(report(), "decode", WORKLOAD, MACHINE, steps)


def test_the_parts_of_a_step_add_up_to_it() -> None:
    one = step(0)
    found = measured(one)
    whole = sum(call.times.elapsed_us for call in found.calls)
    # The last ten nanoseconds and the way back to the caller belong to no call.
    assert whole + found.start_us + 0.1 == pytest.approx(found.library_us)
    assert found.start_us == 0.5 and found.step_us == pytest.approx(found.library_us + 5.0)
    assert sum(call.share for call in found.calls) == pytest.approx(whole / found.library_us)
    busy = sum(call.times.sum_us for call in found.calls)
    assert found.wait_share == pytest.approx(1 - busy / (WORKERS * found.library_us))
    for call in found.calls:
        t = call.times
        assert t.slowest_us <= t.elapsed_us + 1e-9 and t.slowest_us <= t.sum_us
        assert t.sum_us <= WORKERS * t.slowest_us


def test_the_slow_worker_is_not_seen_to_wait() -> None:
    spans = np.array([[[0, 1000], [1010, 1100]], [[0, 200], [1010, 1900]]], np.int64)
    two = {**report(), "phases": {"decode": {**report()["phases"]["decode"]}}}
    two["phases"]["decode"]["kernels"] = two["phases"]["decode"]["kernels"][:2]
    found = profile.measure(
        two, "decode", WORKLOAD, MACHINE, [MeasuredStep(-40, 1950, spans, -50, 2000)]
    )
    first, second = (call.times for call in found.calls)
    assert (first.elapsed_us, first.slowest_us, first.sum_us, first.wait_us) == (1.0, 1.0, 1.2, 0)
    assert second.elapsed_us == 0.9 and second.slowest_us == 0.89
    assert second.wait_us == pytest.approx((10 + 810) / 1e3)
    assert found.end_wait_us == pytest.approx(0.8)


def test_medians_are_over_steps_and_kinds_are_sums() -> None:
    steps = [step(seed) for seed in range(5)]
    found = measured(*steps)
    assert found.steps == 5
    each = [measured(one).calls[3].times.elapsed_us for one in steps]
    assert found.calls[3].times.elapsed_us == pytest.approx(float(np.median(each)))
    kinds = found.kinds()
    assert sum(kind.calls for kind in kinds) == len(found.calls)
    assert sum(kind.share for kind in kinds) == pytest.approx(sum(c.share for c in found.calls))
    costs = kernel_costs(report(), "decode", WORKLOAD, MACHINE)
    assert [call.cost for call in found.calls] == costs
    assert found.predicted_us == pytest.approx(sum(kind.predicted_us for kind in kinds))


def test_another_number_of_calls_is_refused() -> None:
    with pytest.raises(ArtifactError, match="lists 13 kernels of decode"):
        measured(step(0, calls=12))


def traced(count: int) -> dict[str, Any]:
    costs = kernel_costs(report(), "decode", WORKLOAD, MACHINE)
    steps = [TracedStep("decode", WORKLOAD, costs, step(seed)) for seed in range(count)]
    found: dict[str, Any] = json.loads(json.dumps(trace(steps, "inferc, tiny")))
    return found


def rows_of(events: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    rows: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        if event["ph"] == "X":
            assert {"name", "cat", "pid", "tid", "ts", "dur", "args"} <= event.keys()
            assert event["ts"] >= 0 and event["dur"] >= 0
            rows.setdefault(event["tid"], []).append(event)
    return rows


def check_nesting(events: list[dict[str, Any]]) -> None:
    """On one row, of any two events one holds the other or they are apart: what viewers ask for."""
    open_: list[float] = []
    for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        begin, end = event["ts"], event["ts"] + event["dur"]
        while open_ and open_[-1] <= begin + 1e-6:
            open_.pop()
        assert not open_ or end <= open_[-1] + 1e-6, event
        open_.append(end)


def test_trace_nests_in_every_row() -> None:
    events = traced(3)["traceEvents"]
    rows = rows_of(events)
    assert sorted(rows) == [0, 1, 2]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {0: "engine (Python)", 1: "worker 0", 2: "worker 1"}
    for row in rows.values():
        check_nesting(row)
    with pytest.raises(AssertionError):
        check_nesting([{"ts": 0, "dur": 5}, {"ts": 3, "dur": 4}])


def test_trace_has_every_call_once_on_every_worker_in_order() -> None:
    rows = rows_of(traced(2)["traceEvents"])
    names = [cost.name for cost in kernel_costs(report(), "decode", WORKLOAD, MACHINE)]
    for worker in (1, 2):
        calls = [e for e in rows[worker] if e["cat"] not in ("step", "wait")]
        assert [e["name"] for e in calls] == names * 2
        assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-6 for a, b in pairwise(calls))
        steps = [e for e in rows[worker] if e["cat"] == "step"]
        inside = sum(e["dur"] for e in rows[worker] if e["cat"] != "step")
        # Gaps too short to be shown as waiting are what is missing.
        missing = sum(e["dur"] for e in steps) - inside
        assert 0 <= missing <= 0.2 * 2 * (len(names) + 1)
    assert all({"kernel", "modules", "bytes", "predicted_us"} <= e["args"].keys() for e in calls)


def test_arrows_lead_from_the_engine_to_every_worker() -> None:
    events = traced(3)["traceEvents"]
    for number in range(3):
        arrows = [(e["ph"], e["tid"]) for e in events if e.get("id") == number]
        assert arrows == [("s", 0), ("f", 1), ("f", 2)]


def test_saved_profile_is_the_same(tmp_path: Any) -> None:
    found = measured(step(1), step(2))
    limits = saved_profile.limits(uniform("here", 10e9, 100e9, {"int16": 200e9}))
    result = {"threads": 2, "profiles": [{**profile.to_json(found), **limits}]}
    (tmp_path / "profile.json").write_bytes(saved_profile.encode(result))
    assert saved_profile.load(tmp_path) is None  # no manifest lists it
    (tmp_path / "manifest.json").write_text('{"files": {"profile.json": "x"}}')
    saved = saved_profile.load(tmp_path)
    assert saved is not None
    ((phase, machine),) = saved_profile.phases(saved)
    assert phase.calls == found.calls and phase.wait_share == found.wait_share
    assert (machine.bytes_per_second, machine.rate("q4_k")) == (10e9, 100e9)
    assert (machine.rate("int16"), machine.rate("int8")) == (200e9, 100e9)
    for entry in result["profiles"]:
        del entry["integer_gops_per_second"]  # as profiles of earlier versions are
    (tmp_path / "profile.json").write_bytes(saved_profile.encode(result))
    earlier = saved_profile.load(tmp_path)
    assert earlier is not None and saved_profile.phases(earlier)[0][1].rate("int16") == 100e9
    (tmp_path / "profile.json").write_text('{"schema_version": 9}')
    with pytest.raises(ArtifactError, match="expected profile schema 1, found 9"):
        saved_profile.load(tmp_path)


def test_table_names_modules_and_folds_equal_blocks() -> None:
    out = io.StringIO()
    profile_table.show(measured(step(0), step(1)), MACHINE, Console(file=out, width=200))
    text = out.getvalue()
    assert "model.layers.0 … model.layers.1 (x2)" in text and "o_proj layers.0" in text
    assert "medians of 2 steps, 2 workers" in text and "10 GB/s" in text and "waiting:" in text
