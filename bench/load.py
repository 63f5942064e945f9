"""Time and memory from nothing to the first token of a text prompt, in fresh processes.

    python -m bench.load ARTIFACT [ARTIFACT ...] [--runs 9] [--threads N] [--out FILE.json]

Artifacts take turns, a process each; one run before the first warms the file cache and is counted
apart, as the load that compares digests. Figures are medians, and the least beside them, for on a
busy machine the least says more:

    start     s   from the start of the process: the interpreter's own start and all imports too
    imports   s   from before `import inferc`
    load      s   `inferc.load` alone
    first     s   from a text prompt to its first token: encoding, prefill, sampling
    user      s   load + first: what is asked to be at most 0.2
    peak      MiB most resident memory (VmHWM), pages of the mapped weights included
    own       MiB resident memory at the end that is not file pages (RssAnon)
    cpu       s   user and system time of the process up to the first token, of all threads
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from inferc.runtime.host import default_threads

PROMPT = "The capital of France is"
_CHILD = """
import json, sys, time
begin = time.monotonic()
from inferc import load
folder, threads, prompt = sys.argv[1], int(sys.argv[2]), sys.argv[3]
imported = time.monotonic()
engine = load(folder, threads=threads)
loaded = time.monotonic()
event = next(iter(engine.stream(prompt, temperature=0, ignore_eos=True)))
end, cpu = time.monotonic(), time.process_time()
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
mib = lambda name: int(status[name].split()[0]) / 1024
print(json.dumps({
    "end": end, "imports": end - begin, "load": loaded - imported, "first": end - loaded,
    "user": end - imported, "peak": mib("VmHWM"), "own": mib("RssAnon"), "cpu": cpu,
    "token": event.token,
}))
engine.close()
"""


def measure(folder: Path, threads: int, cache: Path) -> dict[str, float]:
    """Figures of one process."""
    command = [sys.executable, "-c", _CHILD, str(folder), str(threads), PROMPT]
    environment = os.environ | {"INFERC_CACHE": str(cache)}
    begin = time.monotonic()
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    found["start"] = found.pop("end") - begin  # one clock for all processes
    return found


def footprint(package: str = "inferc") -> dict[str, float]:
    """MiB on disk of a package and of all that installing it brings, by name."""
    sizes: dict[str, float] = {}
    pending = [package]
    while pending:
        name = pending.pop()
        if name in sizes:
            continue
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # wanted on another platform only
        paths = (file.locate() for file in found.files or ())
        size = sum(os.path.getsize(path) for path in paths if os.path.isfile(path))
        sizes[name] = size / 2**20
        pending += [_name(line) for line in found.requires or () if "extra ==" not in line]
    return sizes


def _name(requirement: str) -> str:
    """`numpy>=1.26; marker` is of numpy; `Typing_Extensions` is `typing-extensions`."""
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def artifact_mib(folder: Path) -> dict[str, float]:
    """MiB of an artifact, and of the parts that count."""
    sizes = {str(p.relative_to(folder)): p.stat().st_size for p in folder.rglob("*") if p.is_file()}
    weights = sum(size for name, size in sizes.items() if name.startswith("weights/"))
    return {"all": sum(sizes.values()) / 2**20, "weights": weights / 2**20}


def run(folders: list[Path], runs: int, threads: int) -> list[dict[str, Any]]:
    """A row of figures for each artifact."""
    with tempfile.TemporaryDirectory() as cache:
        firsts = [measure(folder, threads, Path(cache)) for folder in folders]
        samples: list[list[dict[str, float]]] = [[] for _ in folders]
        for _ in range(runs):
            for folder, found in zip(folders, samples, strict=True):
                found.append(measure(folder, threads, Path(cache)))
    return [
        _row(folder, first, found)
        for folder, first, found in zip(folders, firsts, samples, strict=True)
    ]


def _row(folder: Path, first: dict[str, float], found: list[dict[str, float]]) -> dict[str, Any]:
    names = [name for name in found[0] if name != "token"]
    return {
        "artifact": folder.name,
        "artifact_mib": artifact_mib(folder),
        "with_digests_s": first["load"],
        "median": {name: statistics.median(one[name] for one in found) for name in names},
        "least": {name: min(one[name] for one in found) for name in names},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("artifacts", nargs="+", type=Path)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = run(args.artifacts, args.runs, args.threads)
    result: dict[str, Any] = {
        "threads": args.threads,
        "runs": args.runs,
        "rows": rows,
        "packages_mib": footprint(),
    }
    for row in rows:
        print(f"{row['artifact']}  ({row['artifact_mib']['all']:.1f} MiB)")
        print(f"  load that compares digests: {row['with_digests_s']:.3f} s")
        for name, value in row["median"].items():
            print(f"  {name:8} {value:8.3f}  least {row['least'][name]:8.3f}")
    sizes = result["packages_mib"]
    print(f"packages: {sum(sizes.values()):.1f} MiB: {sizes}")
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
