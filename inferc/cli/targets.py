"""`inferc targets`: what can be compiled for, and what this machine is."""

from __future__ import annotations

import argparse


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:  # type: ignore[type-arg]
    """Declare the command."""
    p: argparse.ArgumentParser = commands.add_parser(
        "targets",
        help="list what can be compiled for",
        description="List the targets of `inferc compile --target`.",
    )
    return p


def run(args: argparse.Namespace) -> int:
    """Print the targets."""
    del args
    from inferc.codegen.targets import list_targets

    for name, summary in list_targets():
        print(f"{name:30} {summary}")
    print("Several of cpu: are joined by commas, of cuda: by '+': one artifact for all of them.")
    return 0
