"""`inferc inspect`: what the compiler did."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from inferc.cli.options import count
from inferc.errors import InfercError

if TYPE_CHECKING:
    from inferc.ir.cost import Workload
    from inferc.report.model import Machine, Report

_FILE_COLUMNS = 140  # width where there is no terminal


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:  # type: ignore[type-arg]
    """Declare the command."""
    p: argparse.ArgumentParser = commands.add_parser(
        "inspect",
        help="show what the compiler did",
        description="Show model, kernels with flops and bytes, memory plan and passes of an "
        "artifact. Reads report.json only: no weights, no compiler. Two artifacts are compared.",
    )
    p.add_argument("artifact", type=Path, nargs="+", help="one artifact, or two to compare")
    p.add_argument("--json", action="store_true", help="print the report as JSON")
    p.add_argument("--html", type=Path, metavar="FILE", help="write one self-contained HTML page")
    p.add_argument("--ir", choices=("nn", "prefill", "decode"), help="print the IR of a stage")
    p.add_argument("--sequences", type=count, default=1, help="sequences of the step (default 1)")
    p.add_argument("--tokens", type=count, default=512, help="rows of a prefill step (default 512)")
    p.add_argument("--context", type=count, default=512, help="mean context tokens (default 512)")
    p.add_argument(
        "--machine", default="cpu2", help="predict for cpu2, h100, h200, or GB/s,GFLOP/s"
    )
    return p


def run(args: argparse.Namespace) -> int:
    """Print or write the report."""
    from inferc.report import model

    if len(args.artifact) > 2:
        raise InfercError(f"inspect takes one or two artifacts, got {len(args.artifact)}")
    if len(args.artifact) == 2 and (args.html or args.ir):
        raise InfercError("--html and --ir show one artifact, got two; --json prints both")
    reports = [model.load(path) for path in args.artifact]
    if args.json:
        print(json.dumps(reports[0] if len(reports) == 1 else reports, indent=1, sort_keys=True))
        return 0
    if args.html:
        from inferc.report import html

        args.html.write_text(html.render(reports[0]), encoding="utf-8")
        print(f"wrote {args.html}")
        return 0
    if args.ir:
        print(_stage(reports[0], args.ir))
        return 0
    _show(reports, args)
    return 0


def _show(reports: Sequence[Report], args: argparse.Namespace) -> None:
    from rich.console import Console

    from inferc.report import compare, terminal

    machine, workloads = _machine(args.machine), _workloads(args, reports[0])
    console = Console(width=None if sys.stdout.isatty() else _FILE_COLUMNS)
    with console.capture() as page:  # rich ends the process on a broken pipe, with exit code 1
        if len(reports) == 2:
            compare.show(reports[0], reports[1], workloads, machine, console)
        else:
            terminal.show(reports[0], machine, workloads, console)
    print(page.get(), end="")


def _stage(report: Report, name: str) -> str:
    stages = report.get("stages", {})
    if name not in stages:
        raise InfercError(
            f"the report holds no stage {name!r}; it has {', '.join(stages) or 'none'}"
        )
    return str(stages[name])


def _machine(text: str) -> Machine:
    from inferc.report.model import MACHINES, Machine

    if text in MACHINES:
        return MACHINES[text]
    try:
        gigabytes, gigaflops = (float(x) for x in text.split(","))
    except ValueError:
        gigabytes = gigaflops = math.nan
    if not (0 < gigabytes < math.inf and 0 < gigaflops < math.inf):
        raise InfercError(
            f"--machine {text!r}: expected one of {', '.join(MACHINES)}, or two numbers "
            "GB/s,GFLOP/s such as 40,400"
        )
    return Machine(text, gigabytes * 1e9, gigaflops * 1e9)


def _workloads(args: argparse.Namespace, report: Report) -> dict[str, Workload]:
    from inferc.ir.cost import Workload

    rows, page = max(args.tokens, args.sequences), report["kv"]["page_tokens"]
    context = max(args.context, rows // args.sequences)
    return {
        "decode": Workload(args.sequences, args.sequences, args.context, page_tokens=page),
        "prefill": Workload(rows, args.sequences, context, page_tokens=page),
    }
