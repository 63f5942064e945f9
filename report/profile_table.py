"""`inferc bench --profile` in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from inferc.report.machines import INTEGERS, PLAIN, Machine
from inferc.report.model import fold
from inferc.report.profile import CallProfile, PhaseProfile
from inferc.report.terminal import bytes_text, figure, make_table

_COLUMNS = (
    "calls", "elapsed us", "slowest us", "all workers us", "waiting us", "predicted us", "moved",
    "of bound", "share",
)  # fmt: skip


def show(profile: PhaseProfile, machine: Machine, console: Console) -> None:
    """Print one phase: by kind, then by call with equal blocks folded (means over them)."""
    w = profile.workload
    console.print(
        f"[bold]{profile.phase}[/]: {w.tokens} rows, {w.sequences} sequences, context"
        f" {w.context_tokens}; medians of {profile.steps} steps, {profile.workers} workers"
    )
    kinds = make_table("by kind of kernel", ("kind", *_COLUMNS), 1)
    for kind in profile.kinds():
        t = kind.times
        kinds.add_row(
            kind.kind, str(kind.calls),
            *_cells((t.elapsed_us, t.slowest_us, t.sum_us, t.wait_us), kind.predicted_us,
                    kind.bytes_moved, kind.share),
        )  # fmt: skip
    console.print(kinds, "")
    _show_calls(profile, console)
    outside_us = profile.step_us - profile.library_us
    console.print(
        f"step {figure(profile.step_us)} us, of which {figure(profile.library_us)} us in the"
        f" library and {figure(outside_us)} us around it (plan, sampling, text); predicted"
        f" {figure(profile.predicted_us)} us at {figure(machine.bytes_per_second / 1e9)} GB/s and"
        f" {_rates(machine)}, measured now.\n"
        f"waiting: {profile.wait_share:.1%} of the workers' time;"
        f" before the first kernel {figure(profile.start_us)} us,"
        f" for the last worker {figure(profile.end_wait_us)} us\n"
    )


def _rates(machine: Machine) -> str:
    integers = [
        f"{figure(machine.rate(kind) / 1e9)} Gop/s of {kind}"
        for kind in INTEGERS
        if kind in machine.flops_per_second
    ]
    return ", ".join([f"{figure(machine.rate(PLAIN) / 1e9)} GFLOP/s", *integers])


def _show_calls(profile: PhaseProfile, console: Console) -> None:
    calls = make_table("by kernel call", ("block / kernel", "modules", *_COLUMNS), 2)
    rest = list(profile.calls)
    for block in fold([call.cost for call in profile.calls]):
        calls.add_row(f"[bold]{block.title}[/]")
        size = len(block.kernels)
        members, rest = rest[: size * len(block.paths)], rest[size * len(block.paths) :]
        for index in range(size):
            same = members[index::size]
            cost = same[0].cost
            calls.add_row(f"  {cost.name}", cost.module_names, str(len(same)), *_mean(same))
    console.print(calls, "")


def _mean(calls: Sequence[CallProfile]) -> tuple[str, ...]:
    """Means of a call over the blocks that are folded; the share is that of all of them."""
    n, first = len(calls), calls[0].cost
    times = [call.times for call in calls]
    means = (
        sum(t.elapsed_us for t in times) / n, sum(t.slowest_us for t in times) / n,
        sum(t.sum_us for t in times) / n, sum(t.wait_us for t in times) / n,
    )  # fmt: skip
    return _cells(means, first.predicted_us, first.bytes_moved, sum(c.share for c in calls))


def _cells(
    times_us: tuple[float, float, float, float], predicted_us: float, moved: int, share: float
) -> tuple[str, ...]:
    bound = predicted_us / times_us[0] if times_us[0] > 0 else 0.0
    cells = (f"{us:.1f}" for us in (*times_us, predicted_us))
    return (*cells, bytes_text(moved), f"{bound:.0%}", f"{share:.1%}")
