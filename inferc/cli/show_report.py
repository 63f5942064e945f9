"""What `inspect` and `plan` share: the workload and the machine that a report is shown for."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from inferc.cli.options import count
from inferc.errors import InfercError
from inferc.report.machines import MACHINES, uniform

if TYPE_CHECKING:
    from rich.console import Console

    from inferc.ir.cost import Workload
    from inferc.report.machines import Machine
    from inferc.report.model import Report

_FILE_COLUMNS = 140  # width where there is no terminal
MACHINE_HELP = f"predict for {', '.join(MACHINES)}, or GB/s,GFLOP/s"


def add_workload(p: argparse.ArgumentParser, *, batch: str) -> None:
    """Declare the options that say what step is shown; `batch` is that of its sequences."""
    p.add_argument(
        batch, type=count, default=1, dest="batch", metavar="N",
        help="sequences of the step (default 1)",
    )  # fmt: skip
    p.add_argument("--tokens", type=count, default=512, help="rows of a prefill step (default 512)")
    p.add_argument("--context", type=count, default=512, help="mean context tokens (default 512)")


def show(reports: Sequence[Report], machine: Machine, args: argparse.Namespace) -> None:
    """Print one report, or two side by side."""
    from inferc.report import compare, terminal

    workloads = _workloads(args, reports[0])

    def fill(console: Console) -> None:
        if len(reports) == 2:
            compare.show(reports[0], reports[1], workloads, machine, console)
        else:
            terminal.show(reports[0], machine, workloads, console)

    show_page(fill)


def show_page(fill: Callable[[Console], None], file_columns: int = _FILE_COLUMNS) -> None:
    """Print what `fill` writes, as wide as the terminal is."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else file_columns)
    with console.capture() as page:  # rich ends the process on a broken pipe, with exit code 1
        fill(console)
    print(page.get(), end="", flush=True)


def machine_of(text: str) -> Machine:
    """The machine that `--machine` means. Raises InfercError."""
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
    return uniform(text, gigabytes * 1e9, gigaflops * 1e9)


def _workloads(args: argparse.Namespace, report: Report) -> dict[str, Workload]:
    from inferc.ir.cost import Workload

    rows, page = max(args.tokens, args.batch), report["kv"]["page_tokens"]
    context = max(args.context, rows // args.batch)
    return {
        "decode": Workload(args.batch, args.batch, args.context, page_tokens=page),
        "prefill": Workload(rows, args.batch, context, page_tokens=page),
    }
