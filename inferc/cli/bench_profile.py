"""`inferc bench --profile`: time per kernel beside the prediction, as table, JSON and trace."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from inferc.cli.show_report import show_page
from inferc.errors import RequestError

if TYPE_CHECKING:
    from inferc.profiling import EngineStep
    from inferc.report.machines import Machine
    from inferc.report.model import Report
    from inferc.report.profile import PhaseProfile
    from inferc.report.trace import TracedStep
    from inferc.runtime.engine import Engine

_FILE_COLUMNS = 180  # width where there is no terminal
_TRACED_DECODES = 16
"""Decode steps of a run that a trace shows."""


def run(engine: Engine, report: Report, args: argparse.Namespace, threads: int) -> None:
    """Profile at every concurrency; print, and write what was asked for."""
    from inferc.profiling import measured_machine, phases_of, profiler_of, traced
    from inferc.report import profile, saved_profile

    executor = profiler_of(engine)
    page_tokens = executor.page_tokens
    _record(engine, args, 1, 1)  # maps the weights; refuses a library that cannot measure
    profiles: list[dict[str, Any]] = []
    shown: list[EngineStep] = []
    for concurrency in args.concurrency:
        machine = measured_machine(executor)
        runs = _record(engine, args, concurrency, args.runs)
        for phase in phases_of(report, page_tokens, machine, runs).values():
            profiles.append({**profile.to_json(phase), **saved_profile.limits(machine)})
            if not args.json:
                _show(phase, machine)
        shown += _for_trace(runs[-1])
    result = {"device": "cpu", "threads": threads, "profiles": profiles}
    if args.json:
        print(json.dumps(result, indent=1))
    if args.trace is not None:
        steps = traced(report, page_tokens, machine, shown)
        _write_trace(args, steps, f"inferc, {report['model']['name']}")
    if args.save:
        _save(args, report, result)


def check(args: argparse.Namespace, device: str) -> None:
    """Refuse options that need `--profile`, and a device that has none."""
    if not args.profile and (args.trace is not None or args.save):
        raise RequestError("--trace and --save: expected with --profile")
    if args.profile and device != "cpu":
        raise RequestError(
            f"--profile: measures the kernels of a CPU, and the device is {device}; for a GPU run"
            " Nsight Systems with INFERC_CUDA=nvtx"
        )


def _record(
    engine: Engine, args: argparse.Namespace, concurrency: int, runs: int
) -> list[list[EngineStep]]:
    from inferc.profiling import record

    return [
        record(engine, concurrency, args.prompt_tokens, args.new_tokens, seed)
        for seed in range(runs)
    ]


def _for_trace(run: Sequence[EngineStep]) -> list[EngineStep]:
    """All prefill steps of a run and its first decode steps."""
    decodes = [step for step in run if step.phase == "decode"][:_TRACED_DECODES]
    last = decodes[-1].end_ns if decodes else None
    return [step for step in run if last is None or step.end_ns <= last]


def _show(phase: PhaseProfile, machine: Machine) -> None:
    from inferc.report import profile_table

    show_page(lambda console: profile_table.show(phase, machine, console), _FILE_COLUMNS)


def _write_trace(args: argparse.Namespace, steps: Sequence[TracedStep], process: str) -> None:
    from inferc.report.trace import trace

    args.trace.write_text(json.dumps(trace(steps, process)), encoding="utf-8")
    if not args.json:
        print(f"wrote {args.trace}; open it with ui.perfetto.dev")


def _save(args: argparse.Namespace, report: Report, result: dict[str, Any]) -> None:
    """Profile and page are files of the artifact like others, with digests in its manifest."""
    from inferc.report import html, saved_profile
    from inferc.runtime.artifact_writer import add_file
    from inferc.runtime.fingerprint import host_fingerprint

    content = saved_profile.encode({**result, "host": host_fingerprint()})
    add_file(args.artifact, saved_profile.PROFILE_FILE, content)
    page = html.render(report, saved_profile.load(args.artifact))
    add_file(args.artifact, "report.html", page.encode())
    if not args.json:
        print(f"saved in {args.artifact}; `inferc inspect` and its page show it")
