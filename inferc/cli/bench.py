"""`inferc bench`: speed beside the machine's bandwidth, measured in the same run.

On the CPU that of reading, on a GPU that of copying, bytes read and written counted.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from inferc.cli.options import count, counts
from inferc.errors import RequestError

if TYPE_CHECKING:
    from inferc.report.model import Report
    from inferc.runtime.artifact import Manifest
    from inferc.runtime.engine import Engine


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:  # type: ignore[type-arg]
    """Declare the command."""
    p: argparse.ArgumentParser = commands.add_parser(
        "bench",
        help="measure speed beside the machine's limits",
        description="Time to first token, time per output token and throughput at several "
        "concurrencies, with random prompts; medians over the runs. The share of the read "
        "bandwidth counts the bytes the report says a decode step must move.",
    )
    p.add_argument("artifact", type=Path)
    p.add_argument("--prompt-tokens", type=count, default=128, metavar="N")
    p.add_argument("--new-tokens", type=count, default=64, metavar="N")
    p.add_argument("--concurrency", type=counts, default=(1, 2, 4, 8), metavar="N,N,…")
    p.add_argument("--runs", type=count, default=3)
    p.add_argument("--device", help="cpu, cuda or cuda:N (default: what the artifact is for)")
    p.add_argument("--threads", type=count)
    p.add_argument("--json", action="store_true")
    p.add_argument(
        "--profile", action="store_true",
        help="time of every kernel beside its prediction, in decode and prefill (CPU)",
    )  # fmt: skip
    p.add_argument(
        "--trace", type=Path, metavar="FILE.json",
        help="with --profile: write a trace for ui.perfetto.dev",
    )  # fmt: skip
    p.add_argument(
        "--save", action="store_true",
        help="with --profile: keep it in the artifact, so that `inferc inspect` shows it",
    )  # fmt: skip
    return p


@dataclass(frozen=True)
class Row:
    """Medians at one concurrency."""

    concurrency: int
    first_token_ms: float
    token_ms: float
    tokens_per_second: float
    read_gb_per_second: float
    share_of_bandwidth: float


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    import inferc
    from inferc.cli import bench_profile
    from inferc.report import model
    from inferc.runtime.artifact import read_manifest
    from inferc.runtime.host import default_threads
    from inferc.runtime.target_choice import first_device

    report, manifest = model.load(args.artifact), read_manifest(args.artifact)
    device = args.device or first_device(manifest)
    bench_profile.check(args, device)
    budget_bytes = _kv_bytes(manifest, args)
    threads = args.threads or default_threads()
    rows = []
    with inferc.load(
        args.artifact, device=device, threads=threads, kv_budget_bytes=budget_bytes
    ) as engine:
        if args.profile:
            bench_profile.run(engine, report, args, threads)
            return 0
        _once(engine, 1, args, seed=0)  # maps the weights
        if not args.json:
            _print_head(device, threads, args)
        for concurrency in args.concurrency:
            row = _measure(engine, concurrency, args, report, _bandwidth(engine))
            rows.append(row)
            if not args.json:
                _print_row(row)
    if args.json:
        head = {"device": device, "threads": threads}
        print(json.dumps({**head, "rows": [asdict(row) for row in rows]}, indent=1))
    return 0


def _bandwidth(engine: Engine) -> float:
    """Bytes a second that the engine's device can move at best, measured now."""
    from inferc.runtime.executors.cuda import CudaExecutor

    if isinstance(engine.executor, CudaExecutor):
        return engine.executor.copy_bandwidth()
    return engine.executor.read_bandwidth()


def _kv_bytes(manifest: Manifest, args: argparse.Namespace) -> int:
    """Room for all sequences at once, so that none waits or is preempted; checks the options."""
    limits, most = manifest.limits, max(args.concurrency)
    needed = args.prompt_tokens + args.new_tokens
    if needed > limits.context_tokens:
        raise RequestError(
            f"prompt and new tokens are {needed}, the artifact's context is {limits.context_tokens}"
        )
    if args.new_tokens < 2:
        raise RequestError("--new-tokens: expected at least 2, for the first comes with the prompt")
    if most > limits.sequences:
        raise RequestError(
            f"--concurrency {most}: the artifact runs at most {limits.sequences} sequences at once"
        )
    pages = -(-needed // manifest.kv.page_tokens)
    return most * pages * manifest.kv.page_bytes


@dataclass(frozen=True)
class _Timing:
    """One run: until every prompt has its first token, and the steps and tokens after that."""

    first_s: float
    rest_s: float
    steps: int
    tokens: int


def _measure(
    engine: Engine, concurrency: int, args: argparse.Namespace, report: Report, limit: float
) -> Row:
    times = [_once(engine, concurrency, args, seed=1 + i) for i in range(args.runs)]
    step = statistics.median(t.rest_s / max(1, t.steps) for t in times)
    moved = _must_move_bytes(report, args.prompt_tokens + args.new_tokens // 2, concurrency)
    return Row(
        concurrency,
        statistics.median(t.first_s for t in times) * 1e3,
        step * 1e3,
        statistics.median(t.tokens / t.rest_s for t in times),
        limit / 1e9,
        moved / step / limit,
    )


def _must_move_bytes(report: Report, context_tokens: int, concurrency: int) -> float:
    from inferc.ir.cost import Workload
    from inferc.report import model

    workload = Workload.decode(concurrency, context_tokens)
    return model.size(report["phases"]["decode"]["must_move_bytes"], workload)


def _once(engine: Engine, concurrency: int, args: argparse.Namespace, seed: int) -> _Timing:
    from inferc import SamplingParams

    params = SamplingParams(max_tokens=args.new_tokens, ignore_eos=True)
    start = time.perf_counter()
    for prompt in _prompts(engine, concurrency, args.prompt_tokens, seed):
        engine.add_request(prompt, params)
    started: set[int] = set()
    first, steps, tokens = start, 0, 0
    while engine.has_work:
        all_started = len(started) == concurrency
        events = [event for event in engine.step() if event.token is not None]
        if all_started:
            steps, tokens = steps + 1, tokens + len(events)
            continue
        started |= {event.request for event in events}
        first = time.perf_counter()
    return _Timing(first - start, time.perf_counter() - first, steps, tokens)


def _prompts(engine: Engine, count: int, length: int, seed: int) -> Iterator[list[int]]:
    """Random prompts without a common beginning, so that the prefix cache plays no part."""
    rng = random.Random(seed)
    high = engine.executor.vocab_size
    for _ in range(count):
        yield [rng.randrange(high // 8, high) for _ in range(length)]


def _print_head(device: str, threads: int, args: argparse.Namespace) -> None:
    where = f"{threads} threads" if device == "cpu" else device
    print(f"{where}, {args.prompt_tokens} prompt and {args.new_tokens} new tokens")
    print(
        f"{'at once':>8}{'first token':>14}{'per token':>12}{'tokens/s':>11}{'of bandwidth':>15}",
        flush=True,
    )


def _print_row(row: Row) -> None:
    share = f"{row.share_of_bandwidth:.0%}"
    print(
        f"{row.concurrency:>8}{row.first_token_ms:>11.1f} ms{row.token_ms:>9.2f} ms"
        f"{row.tokens_per_second:>11.1f}{share:>8} of {row.read_gb_per_second:.0f} GB/s",
        flush=True,
    )
