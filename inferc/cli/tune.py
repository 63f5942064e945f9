"""`inferc tune`: measure what is left to choose on this machine, and keep it in the artifact."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from inferc.cli.options import count
from inferc.errors import RequestError

if TYPE_CHECKING:
    from inferc.runtime.artifact import Manifest
    from inferc.runtime.tuning import Tuning


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:  # type: ignore[type-arg]
    """Declare the command."""
    p: argparse.ArgumentParser = commands.add_parser(
        "tune",
        help="measure this machine's best settings for an artifact",
        description="Number of threads, how long they wait before they sleep, whether they stay on "
        "processors of their own, and the length of prefill chunks: measured interleaved with the "
        "defaults, and kept where they are faster for sure. Written to tuning.json of the "
        "artifact, which holds for this machine only. No result changes by it.",
    )
    p.add_argument("artifact", type=Path)
    p.add_argument("--rounds", type=count, default=9, help="rounds of every candidate (default 9)")
    p.add_argument("--prompt-tokens", type=count, default=256, metavar="N")
    p.add_argument("--new-tokens", type=count, default=32, metavar="N")
    p.add_argument("--dry-run", action="store_true", help="measure and print, write nothing")
    p.add_argument("--json", action="store_true", help="print tuning.json")
    return p


def run(args: argparse.Namespace) -> int:
    """Measure, print, write."""
    from inferc.runtime.artifact import read_manifest
    from inferc.runtime.artifact_writer import add_file
    from inferc.runtime.tuning import TUNING_FILE

    tuning = _measure(args, read_manifest(args.artifact))
    if not args.dry_run:
        add_file(args.artifact, TUNING_FILE, tuning.to_json())
    if args.json:
        print(json.dumps(json.loads(tuning.to_json()), indent=1))
        return 0
    for line in describe(tuning):
        print(line)
    if not args.dry_run:
        print(f"wrote {args.artifact / TUNING_FILE}")
    return 0


def describe(tuning: Tuning) -> list[str]:
    """The candidates with their times, and which were taken."""
    cpu, processors = (tuning.host.get(key, "unknown") for key in ("cpu", "processors"))
    lines = [f"tuned on {cpu}, {processors} processors:"]
    for row in tuning.candidates:
        mark = "*" if row.taken else " "
        won = "" if row.value.endswith("default)") or row.value == "default" else f"{row.wins:.0%}"
        lines.append(
            f"  {mark} {row.choice:<13}{row.value:<16}{row.seconds * 1e3:>10.1f} ms"
            + (f"   faster in {won} of rounds" if won else "")
        )
    return [*lines, "  * taken"] if tuning.candidates else [*lines, "  nothing to choose"]


def _measure(args: argparse.Namespace, manifest: Manifest) -> Tuning:
    import inferc
    from inferc.runtime.host import default_threads
    from inferc.tuning import Effort, tune

    needed = args.prompt_tokens + args.new_tokens
    if needed > manifest.limits.context_tokens:
        raise RequestError(
            f"prompt and new tokens are {needed}, the artifact's context is"
            f" {manifest.limits.context_tokens}"
        )
    effort = Effort(args.rounds, args.prompt_tokens, args.new_tokens)
    with inferc.load(args.artifact, prefix_cache=False, tuned=False) as engine:
        return tune(engine, default_threads(), effort, lambda text: print(text, file=sys.stderr))
