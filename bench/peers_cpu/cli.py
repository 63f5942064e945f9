"""inferc beside its peers on this CPU.

    build    environments and models of the peers, from nothing, each on its own
    run      measure what is built, merge into the results, and write the report
    report   the CPU part of docs/performance.md from the results
    limits   only what the machine can do

Several run in the order given: `bench/peers.py build run`. A peer that could not be built, or that
crashes, stands in the results with the reason.
"""

from __future__ import annotations

import argparse
import datetime
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.peers_cpu import environments, machine, models, report
from bench.peers_cpu.catalog import (
    FIGURES,
    INFERC,
    INFERC_INT8,
    MODELS,
    PEERS,
    Figure,
    Peer,
    Weights,
)
from bench.peers_cpu.gguf_tools import size_of
from bench.peers_cpu.home import ROOT, BuildFailed, Home, tree_bytes
from bench.peers_cpu.process import Launch
from bench.peers_cpu.rows import (
    Column,
    Limit,
    Row,
    Setting,
    Timing,
    make_row,
    read_rows,
    write_rows,
)
from bench.peers_cpu.session import Measured, measure

RESULTS = ROOT / "bench" / "results" / "cpu-peers.json"
DOCS = ROOT / "docs" / "performance.md"
_COMMANDS = ("build", "run", "report", "limits")
_DEFAULT = [name for name in PEERS if name != "vLLM bf16"]


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What was asked for."""
    p = argparse.ArgumentParser(
        prog="bench/peers.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    p.add_argument("commands", nargs="+", choices=_COMMANDS, metavar="command",
                   help=", ".join(_COMMANDS))  # fmt: skip
    p.add_argument("--peers", nargs="+", choices=PEERS, default=_DEFAULT, metavar="NAME",
                   help=", ".join(PEERS))  # fmt: skip
    p.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), metavar="NAME",
                   help=", ".join(MODELS))  # fmt: skip
    p.add_argument("--figures", nargs="+", choices=FIGURES, default=list(FIGURES), metavar="NAME",
                   help=", ".join(FIGURES))  # fmt: skip
    p.add_argument("--rounds", type=int, default=7, help="timings of each, after one for warmth")
    p.add_argument("--minutes", type=float, default=math.inf,
                   help="of a model: no more rounds than these allow, but one")  # fmt: skip
    p.add_argument("--threads", type=int, default=machine.describe().cores)
    p.add_argument("--home", type=Path, default=ROOT / ".cache" / "peers",
                   help="where peers are built (about 15 GB)")  # fmt: skip
    p.add_argument("--limit", type=float, default=300, help="seconds an answer may take")
    p.add_argument("--results", type=Path, default=RESULTS)
    p.add_argument("--docs", type=Path, default=DOCS)
    return p.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Do it; 1 if something that was asked for could not be built."""
    args = arguments(argv)
    home = Home(args.home.resolve(), jobs=args.threads)
    failed: dict[str, str] = {}
    if args.commands != ["report"]:
        with home.alone():
            failed = work(home, args)
    if {"run", "report"} & set(args.commands):
        report.put_into_docs(args.docs, report.section(read_rows(args.results)))
    return 1 if failed else 0


def work(home: Home, args: argparse.Namespace) -> dict[str, str]:
    """The commands in their order; what could not be built, with the reason."""
    failed: dict[str, str] = {}
    for command in args.commands:
        match command:
            case "build":
                failed = build(home, args)
            case "run":
                run(home, args)
            case "limits":
                probes = machine.Limits(home.folder, args.threads)
                print(f"memory read: {probes.read_bytes_per_s() / 1e9:.1f} GB/s")
                for name, rate in probes.rates().items():
                    print(f"{name}: {rate / 1e9:.1f} Gop/s")
    return failed


def build(home: Home, args: argparse.Namespace) -> dict[str, str]:
    """Environments, then models; what failed, with the reason."""
    failed = {}
    for name in needed_environments([PEERS[name] for name in args.peers]):
        if reason := environments.build(home, name):
            failed[name] = reason
    for weights, peer in _pairs(args):
        if isinstance(reason := _model(home, weights, peer), str):
            failed[f"{weights.key} for {peer.name}"] = reason
    for what, reason in failed.items():
        print(f"not built: {what}: {reason}", file=sys.stderr)
    return failed


def needed_environments(peers: Sequence[Peer]) -> list[str]:
    """What must be built for some peers, in order. llama.cpp always: it quantises the models."""
    wanted = {"inferc", "llama.cpp"} | {peer.environment for peer in peers if peer.environment}
    wanted |= {need for name in wanted for need in environments.ENVIRONMENTS[name].needs}
    return [name for name in environments.ENVIRONMENTS if name in wanted]


def _pairs(args: argparse.Namespace) -> list[tuple[Weights, Peer]]:
    asked = [MODELS[name] for name in args.models]
    peers = [PEERS[name] for name in args.peers]
    return [(weights, peer) for weights in asked for peer in peers if peer.fits(weights)]


def _model(home: Home, weights: Weights, peer: Peer) -> Path | str:
    """The path of what the peer loads, or why there is none."""
    try:
        if peer.environment and (reason := environments.why_not(home, peer.environment)):
            return reason
        return models.make_model(home, weights, peer)
    except (BuildFailed, OSError) as error:
        return str(error)


def run(home: Home, args: argparse.Namespace) -> None:
    """One session for each model, merged into the results at its end."""
    read_rows(args.results)  # whatever is wrong with the file is to be known before the hours
    probes = machine.Limits(home.folder, args.threads)
    for key in args.models:
        weights = MODELS[key]
        figures = [weights.shortened(FIGURES[name]) for name in args.figures]
        peers = [PEERS[name] for name in args.peers if PEERS[name].fits(weights)]
        print(f"{key}: {', '.join(peer.name for peer in peers)}", file=sys.stderr, flush=True)
        launches = {peer.name: launch(home, weights, peer, args.threads) for peer in peers}
        if not launches:
            continue
        measured = measure(
            launches, figures, args.rounds, probes, args.limit, most_s=60 * args.minutes
        )
        add_sizes(home, measured, launches, figures)
        size = size_of(models.gguf_file(home, weights))
        today = datetime.date.today().isoformat()
        setting = Setting(weights, size, machine.describe(), args.threads, today)
        new = rows(setting, measured, figures)
        write_rows(args.results, new)
        for row in new:
            print(f"{row['weights']:32} {row['figure']:14} {row['inferc']} {row['peers']}")


def launch(home: Home, weights: Weights, peer: Peer, threads: int) -> Launch | str:
    """How to start a peer on a model, or why it cannot be."""
    model = _model(home, weights, peer)
    if isinstance(model, str):
        return model
    python = Path(sys.executable) if peer.environment is None else home.python(peer.environment)
    variables = environments.start_variables(home, peer.environment or "")
    log = home.place("logs", f"worker-{peer.name.replace(' ', '-')}.log")
    return Launch(python, peer.engine, model, threads, peer.options, variables, log)


def add_sizes(
    home: Home, measured: Measured, launches: dict[str, Launch | str], figures: Sequence[Figure]
) -> None:
    """Put bytes on disk into the columns of those that are there."""
    for name, found in launches.items():
        if isinstance(found, str):
            continue
        environment = PEERS[name].environment or "inferc"
        sizes = {"model size": tree_bytes(found.model)}
        if environments.why_not(home, environment) is None:
            sizes["runtime size"] = environments.runtime_bytes(home, environment)
        for figure in figures:
            if figure.name in sizes:
                timing = Timing(sizes[figure.name] / 1e6, 0.0)
                measured.columns[name][figure.name] = Column([timing])


def rows(setting: Setting, measured: Measured, figures: Sequence[Figure]) -> list[Row]:
    """Rows of all figures: ours in each arithmetic, beside peers on equal weights, then others."""
    found = []
    weights = setting.weights
    names = {name: PEERS[name] for name in measured.columns}
    ours = [name for name in (INFERC, INFERC_INT8) if name in names]
    groups: dict[str | None, list[str]] = {}
    for name, peer in names.items():
        if peer.engine != "inferc":
            stored = None if peer.equal_weights(weights) else peer.stored
            groups.setdefault(stored, []).append(name)
    for mine in ours:
        for stored, members in (groups or {None: []}).items():
            for figure in figures:
                row = make_row(
                    setting, figure, measured.limits.get(figure.name, Limit([], {})),
                    measured.columns[mine][figure.name],
                    {name: measured.columns[name][figure.name] for name in members},
                    peer_weights=stored, int8=PEERS[mine].int8,
                )  # fmt: skip
                versions = {name: measured.versions[name] for name in members}
                found.append({**row, "versions": versions})
    return found
