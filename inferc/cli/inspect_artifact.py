"""`inferc inspect`: what the compiler did."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from inferc.cli.show_report import MACHINE_HELP, add_workload, machine_of, show, show_page
from inferc.errors import InfercError

if TYPE_CHECKING:
    from inferc.report.model import Report


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:  # type: ignore[type-arg]
    """Declare the command."""
    p: argparse.ArgumentParser = commands.add_parser(
        "inspect",
        help="show what the compiler did",
        description="Show model, kernels with flops and bytes, memory plan and passes of an "
        "artifact, and what was measured of it. Reads neither weights nor code. Two artifacts are "
        "compared.",
    )
    p.add_argument("artifact", type=Path, nargs="+", help="one artifact, or two to compare")
    p.add_argument("--json", action="store_true", help="print the report as JSON")
    p.add_argument("--html", type=Path, metavar="FILE", help="write one self-contained HTML page")
    p.add_argument("--ir", choices=("nn", "prefill", "decode"), help="print the IR of a stage")
    add_workload(p, batch="--sequences")
    p.add_argument("--machine", help=f"{MACHINE_HELP} (default: h200 for a GPU, else cpu2)")
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
        from inferc.report import html, saved_profile

        page = html.render(reports[0], saved_profile.load(args.artifact[0]))
        args.html.write_text(page, encoding="utf-8")
        print(f"wrote {args.html}")
        return 0
    if args.ir:
        print(_stage(reports[0], args.ir))
        return 0
    is_cuda = str(reports[0]["target"]["name"]).startswith("cuda:")
    show(reports, machine_of(args.machine or ("h200" if is_cuda else "cpu2")), args)
    if len(reports) == 1:
        _show_tuning(args.artifact[0])
        _show_profile(args)
    return 0


def _show_tuning(artifact: Path) -> None:
    """What `inferc tune` found, and whether it holds here."""
    from inferc.cli.tune import describe
    from inferc.runtime.artifact import MANIFEST_NAME, read_manifest
    from inferc.runtime.tuning import read_tuning

    if not (artifact / MANIFEST_NAME).exists():  # a report alone can be inspected
        return
    tuning = read_tuning(artifact, read_manifest(artifact))
    if tuning is not None:
        print()
        for line in describe(tuning):
            print(line)
        if not tuning.holds_here:
            print("  this is another machine: the defaults are used here")


def _show_profile(args: argparse.Namespace) -> None:
    """What `inferc bench --profile --save` kept, for as many sequences as are shown."""
    from inferc.report import profile_table, saved_profile

    saved = saved_profile.load(args.artifact[0])
    if saved is None:
        return
    phases = saved_profile.phases(saved)
    host = saved.get("host", {})
    print(f"\nmeasured on {host.get('cpu', 'an unknown processor')}, {saved['threads']} threads")
    wanted = [(p, m) for p, m in phases if p.workload.sequences == args.batch]
    for phase, machine in wanted:
        show_page(lambda console, p=phase, m=machine: profile_table.show(p, m, console))
    others = sorted({p.workload.sequences for p, _ in phases} - {args.batch})
    if others:
        print(f"also measured: --sequences {', '.join(map(str, others))}")


def _stage(report: Report, name: str) -> str:
    stages = report.get("stages", {})
    if name not in stages:
        raise InfercError(
            f"the report holds no stage {name!r}; it has {', '.join(stages) or 'none'}"
        )
    return str(stages[name])
