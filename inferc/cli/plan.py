"""`inferc plan`: what the compiler would make of a model, without weights."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from inferc.cli.compile_model import ShownProgress, add_options, chosen_options
from inferc.cli.show_report import MACHINE_HELP, add_workload, machine_of, show


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:  # type: ignore[type-arg]
    """Declare the command."""
    p: argparse.ArgumentParser = commands.add_parser(
        "plan",
        help="what a model would need, from its config alone",
        description="Run the compiler up to the point where kernels are built and weights packed, "
        "and show the report that the artifact would have: KV bytes a token, weights, traffic of a "
        "step, a bound for each kernel on a machine. A config.json is enough.",
    )
    p.add_argument("source", type=Path, help="config.json (any *.json), or a model as for compile")
    p.add_argument(
        "--dtype", metavar="TYPE",
        help="type of the weights of a config.json, instead of what it declares: f32, bf16, f16, "
        "or a block format such as q4_k, which linear layers and experts then have",
    )  # fmt: skip
    add_options(p)
    add_workload(p, batch="--batch")
    p.add_argument("--machine", default="h200", help=f"{MACHINE_HELP} (default h200)")
    p.add_argument("--json", action="store_true", help="print the report as JSON")
    p.add_argument("-q", "--quiet", action="store_true", help="no progress")
    return p


def run(args: argparse.Namespace) -> int:
    """Plan and print."""
    import inferc

    machine = machine_of(args.machine)
    with ShownProgress(quiet=args.quiet) as progress:
        report = inferc.plan(
            args.source, dtype=args.dtype, progress=progress.show, **chosen_options(args)
        )
    for note in progress.notes:
        print(f"note: {note}", file=sys.stderr)
    if args.json:
        print(json.dumps(report, indent=1, sort_keys=True))
        return 0
    show([report], machine, args)
    return 0
