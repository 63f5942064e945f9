"""Everything that is to be known of a GPU: `make gpu`, or `python -m bench.gpu --help`.

Needs only what an image for GPUs has: torch, transformers, cuda-python, a C++ compiler, and nvcc or
NVRTC. Nothing is installed. Results go to bench/results/gpu-<name>.json and docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.gpu import correctness, limits, ours, tree
from bench.gpu.peers import ENGINES
from bench.gpu.results import ROOT, Figure, Results, put_into_docs, table
from bench.gpu.workloads import MODELS, QUICK, WORKLOADS, Model, Workload

STAGES = ("correctness", "limits", "inferc", "peers")
DOCS = ROOT / "docs" / "performance.md"
Child = Callable[[Sequence[str]], list[dict[str, Any]]]


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What was asked for."""
    p = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    p.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    p.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    p.add_argument("--cases", nargs="+", default=list(correctness.CASES), metavar="NAME")
    p.add_argument("--quick", action="store_true", help="three workloads and one tiny model")
    p.add_argument("--device", default="cuda:0")
    p.add_argument("--name", help="of the result; by default that of the GPU")
    p.add_argument("--scratch", type=Path, help="room for checkpoints and artifacts (100 GB)")
    p.add_argument("--results", type=Path, default=ROOT / "bench" / "results")
    p.add_argument("--docs", type=Path, default=DOCS, help="file with the marks for the tables")
    return p.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run all stages; 1 if a check failed."""
    args = arguments(argv)
    tree.make_importable()
    missing = tree.missing()
    if missing:
        raise SystemExit(f"missing: {', '.join(missing)}; install them, nothing is installed here")
    machine, target = describe(args.device)
    name = args.name or slug(str(machine["gpu"]))
    with tempfile.TemporaryDirectory(prefix="inferc-gpu-", dir=args.scratch) as folder:
        results = run(args, Results(machine), target, Path(folder), child)
    results.write(args.results / f"gpu-{name}.json")
    put_into_docs(args.docs, name, table(results))
    print(table(results))
    return 0 if results.passed else 1


def run(
    args: argparse.Namespace, results: Results, target: str, scratch: Path, child: Child
) -> Results:
    """The stages that were asked for, one after the other."""
    chosen = QUICK if args.quick else WORKLOADS
    if "correctness" in args.stages:
        names = args.cases[:1] if args.quick else args.cases
        results.checks += correctness.check_all(names, scratch, target, args.device)
    if "limits" in args.stages:
        results.limits = limits.measure(args.device)
    for model in [MODELS[name] for name in args.models]:
        asked = json.dumps({"device": args.device, "workloads": [asdict(w) for w in chosen]})
        if "inferc" in args.stages:
            results.figures += _ours(model, target, scratch, chosen, asked, child)
        if "peers" in args.stages and model.bits == 16:
            for engine in ENGINES:
                command = ["bench.gpu.peers", engine, model.name, asked]
                results.figures += figures(engine, model, chosen, _answer(command, child))
    return results


def _ours(
    model: Model, target: str, scratch: Path, chosen: Sequence[Workload], asked: str, child: Child
) -> list[Figure]:
    try:
        artifact = ours.compile_model(model, scratch, target, chosen)
    except Exception as error:  # a refusal belongs in the table
        rows: list[dict[str, Any]] = [
            {"workload": str(w), "seconds": None, "note": f"does not compile: {error}"[:160]}
            for w in chosen
        ]
        return figures("inferc", model, chosen, rows)
    return figures(
        "inferc", model, chosen, _answer(["bench.gpu.ours", str(artifact), asked], child)
    )


def figures(
    engine: str, model: Model, chosen: Sequence[Workload], rows: Sequence[dict[str, Any]]
) -> list[Figure]:
    """The rows of a child, with what they are of. A workload without a row did not run."""
    ended = {"note": "its process ended early"}
    of = {w: [r for r in rows if r["workload"].partition(": ")[0] == str(w)] for w in chosen}
    return [
        Figure(
            engine, model.name, row.get("workload", str(w)), w.kind, w.batch,
            tokens=row.get("tokens", 0), seconds=row.get("seconds"),
            must_move_bytes=row.get("must_move_bytes"), flops=row.get("flops"),
            note=row.get("note", ""),
        )
        for w in chosen
        for row in of[w] or [ended]
    ]  # fmt: skip


def _answer(command: Sequence[str], child: Child) -> list[dict[str, Any]]:
    print(f"… {' '.join(command[:-1])}", file=sys.stderr, flush=True)
    return child(command)


def child(command: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of a module of ours, run by itself so that its memory is free afterwards."""
    done = subprocess.run(
        [sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True, cwd=ROOT, check=False
    )
    if done.returncode != 0 or not done.stdout.strip():
        print(f"{command[0]} ended with {done.returncode}", file=sys.stderr)
        return []
    rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return rows


def describe(device: str) -> tuple[dict[str, Any], str]:
    """What the machine is, and the target to compile for."""
    import torch
    import transformers

    from inferc.codegen.targets import ARCHS

    if not torch.cuda.is_available():
        raise SystemExit("torch finds no GPU; `make gpu` is for a machine with one")
    index = torch.device(device).index or 0
    capability = torch.cuda.get_device_capability(index)
    fitting = [a for a in ARCHS.values() if a.capability[0] == capability[0]
               and a.capability <= capability]  # fmt: skip
    if not fitting:
        raise SystemExit(f"no target for compute capability {capability[0]}.{capability[1]}")
    machine = {
        "gpu": torch.cuda.get_device_name(index),
        "cuda": torch.version.cuda,
        "torch": f"torch {torch.__version__}",
        "transformers": f"transformers {transformers.__version__}",
        "host": platform.machine(),
    }
    return machine, f"cuda:{max(fitting, key=lambda a: a.sm).name}"


def slug(name: str) -> str:
    """A file's name: `NVIDIA H200` → `h200`."""
    words = name.lower().replace("nvidia", "").split()
    return "-".join("".join(c for c in word if c.isalnum() or c in "-.") for word in words)


if __name__ == "__main__":
    sys.exit(main())
