"""Models of full size without their weights, and checkpoints of many gigabytes, in little memory.

    python bench/full_size.py plan [NAME ...]              capture and passes from configs alone
    python bench/full_size.py pack SHAPE [--gigabytes 20]  compile a checkpoint of sparse files
    python bench/full_size.py import [--layers 94]         plan a checkpoint of 36,000 tensors

Everything runs in a process of its own with an empty cache; the figures of a process are wall time,
processor time, and the peak of its resident memory, its children's apart; sampled as well are its
anonymous memory and its mapped pages of files. The limits are 2 GiB for both together, and for
`plan` two minutes. Results go to bench/results/full-size.json, under the name of what was run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from sparse_checkpoint import CONFIGS, SHAPES, checkpoint, layers_for

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "full-size.json"
MODELS = ("llama-3.1-70b", "qwen3-235b-a22b", "deepseek-v3", "gpt-oss-120b")
LIMIT_BYTES, LIMIT_S = 2 << 30, 120
CONTEXT_TOKENS = 4096  # of the decode step that traffic is given for
MIB = 1 << 20


# -- what runs in a process of its own
def plan_one(path: str) -> dict[str, Any]:
    """Plan a config; what the report says, for the H200."""
    import inferc
    from inferc.ir.cost import Workload
    from inferc.report.fit import fit
    from inferc.report.machines import MACHINES
    from inferc.report.model import phase

    report = inferc.plan(path, kv_dtype="bf16")
    machine = MACHINES["h200"]
    fitted = fit(report, machine)
    assert fitted is not None
    result: dict[str, Any] = {
        "parameters": report["model"]["parameters"],
        "weights_bytes": report["memory"]["weights_bytes"],
        "kv_bytes_per_token": report["kv"]["bytes_per_token"],
        "kernels_in_decode": len(report["phases"]["decode"]["kernels"]),
        "h200_kv_tokens": fitted.kv_tokens,
        "h200_machines": fitted.machines,
    }
    for sequences in (1, 64):
        step = phase(report, "decode", Workload.decode(sequences, CONTEXT_TOKENS), machine)
        result[f"decode_{sequences}"] = {
            "moved_bytes": step.bytes_moved,
            "traffic_ratio": round(step.traffic_ratio, 4),
            "h200_bound_us": round(step.predicted_us, 1),
        }
    return result


def pack_one(source: str, output: str) -> dict[str, Any]:
    """Compile a checkpoint."""
    import inferc

    manifest = inferc.compile(source, output)
    files = [f for f in Path(output).rglob("*") if f.is_file()]
    return {
        "parameter_bytes": manifest.model.parameter_bytes,
        "artifact_bytes": sum(f.stat().st_size for f in files),
    }


def import_one(source: str) -> dict[str, Any]:
    """Plan a checkpoint: every stored tensor is named, bound and checked, none is read."""
    import inferc

    report = inferc.plan(source, kv_dtype="bf16")
    return {
        "parameter_bytes": report["model"]["parameter_bytes"],
        "stored_tensors": sum(len(w["sources"]) for w in report["weights"]),
    }


TASKS = {"plan": plan_one, "pack": pack_one, "import": import_one}


class _Sampler(threading.Thread):
    """Peaks of the resident memory of this process by kind, from /proc."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peaks: dict[str, int] = {}

    def run(self) -> None:
        while True:
            for line in Path("/proc/self/status").read_text().splitlines():
                name, _, rest = line.partition(":")
                if name in ("VmRSS", "RssAnon", "RssFile"):
                    self.peaks[name] = max(self.peaks.get(name, 0), int(rest.split()[0]) * 1024)
            time.sleep(0.02)


def child(task: str, arguments: list[str]) -> None:
    """Run a task and print its result and figures as JSON."""
    sampler = _Sampler()
    sampler.start()
    start = time.perf_counter()
    result = TASKS[task](*arguments)
    seconds = time.perf_counter() - start
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    peak = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
    figures = {
        "wall_s": round(seconds, 1),
        "processor_s": round(
            own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime, 1
        ),
        "peak_mib": round(int(peak) / 1024),
        "peak_anonymous_mib": round(sampler.peaks["RssAnon"] / MIB),
        "peak_of_files_mib": round(sampler.peaks["RssFile"] / MIB),
        "peak_of_children_mib": round(children.ru_maxrss / 1024),
    }
    print(json.dumps(result | figures))


# -- running and recording
def run(task: str, *arguments: str) -> dict[str, Any]:
    """A task in a fresh process with an empty cache."""
    with tempfile.TemporaryDirectory(prefix="full-size-") as cache:
        done = subprocess.run(
            [sys.executable, __file__, "child", task, *arguments],
            env=os.environ | {"INFERC_CACHE": cache, "OPENBLAS_NUM_THREADS": "1"},
            stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    peak = result["peak_mib"] + result["peak_of_children_mib"]
    load, cpus = os.getloadavg()[0], os.cpu_count() or 1
    # On a machine that others use, wall time says how busy it was: processor time is judged then.
    judged = "wall_s" if load <= cpus else "processor_s"
    in_time = task != "plan" or result[judged] < LIMIT_S
    result["load_average"] = round(load, 1)
    result["within_limits"] = in_time and peak * MIB < LIMIT_BYTES
    result["time_judged_by"] = judged if task == "plan" else None
    return result


def record(name: str, result: dict[str, Any]) -> None:
    """Put a result among those of earlier runs."""
    results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    results["machine"] = f"{os.cpu_count()} x {platform.machine()}"
    results[name] = result
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    print(f"{name}: {json.dumps(result)}", flush=True)


def pack(shape: str, gigabytes: float, scratch: Path | None) -> None:
    """Compile a sparse checkpoint; everything is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="full-size-", dir=scratch) as folder:
        source, output = Path(folder) / "model", Path(folder) / "artifact"
        stored = checkpoint(source, shape, layers_for(shape, gigabytes))
        free = shutil.disk_usage(folder).free
        if free < stored + (1 << 30):
            raise SystemExit(f"{folder}: the artifact needs {stored} bytes, {free} are free")
        record(f"pack {shape}", {"stored_bytes": stored} | run("pack", str(source), str(output)))


def named(layers: int) -> None:
    """Import a checkpoint of every expert of so many layers."""
    with tempfile.TemporaryDirectory(prefix="full-size-") as folder:
        source = Path(folder) / "model"
        stored = checkpoint(source, "experts", layers)
        record("import experts", {"stored_bytes": stored} | run("import", str(source)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    commands = parser.add_subparsers(dest="command", required=True)
    p = commands.add_parser("plan")
    p.add_argument("names", nargs="*", metavar="NAME", default=list(MODELS))
    p = commands.add_parser("pack")
    p.add_argument("shape", choices=SHAPES)
    p.add_argument("--gigabytes", type=float, default=20)
    p.add_argument("--scratch", type=Path, help="where checkpoint and artifact may lie for a while")
    p = commands.add_parser("import")
    p.add_argument("--layers", type=int, default=94)
    p = commands.add_parser("child")
    p.add_argument("task", choices=TASKS)
    p.add_argument("arguments", nargs="*")
    args = parser.parse_args()
    if args.command == "child":
        child(args.task, args.arguments)
    elif args.command == "pack":
        pack(args.shape, args.gigabytes, args.scratch)
    elif args.command == "import":
        named(args.layers)
    else:
        for name in args.names:
            record(f"plan {name}", run("plan", str(CONFIGS / f"{name}.json")))


if __name__ == "__main__":
    main()
