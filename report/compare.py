"""Two artifacts side by side."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from inferc.ir.cost import Workload
from inferc.report.machines import Machine
from inferc.report.model import Report, phase


def rows(
    a: Report, b: Report, workloads: dict[str, Workload], machine: Machine
) -> Iterator[tuple[str, float, float]]:
    """Figures of both reports: (name, value in a, value in b)."""
    yield "parameter bytes", a["model"]["parameter_bytes"], b["model"]["parameter_bytes"]
    yield "packed weight bytes", a["memory"]["weights_bytes"], b["memory"]["weights_bytes"]
    yield "KV bytes a token", a["kv"]["bytes_per_token"], b["kv"]["bytes_per_token"]
    yield "arena bytes", a["memory"]["arena_bytes"], b["memory"]["arena_bytes"]
    for name, workload in workloads.items():
        left, right = (phase(r, name, workload, machine) for r in (a, b))
        yield f"{name}: bytes moved", left.bytes_moved, right.bytes_moved
        yield f"{name}: traffic ratio", left.traffic_ratio, right.traffic_ratio
        yield f"{name}: flops", left.flops, right.flops
        yield f"{name}: predicted us on {machine.name}", left.predicted_us, right.predicted_us


def show(
    a: Report, b: Report, workloads: dict[str, Workload], machine: Machine, console: Console
) -> None:
    """Print the comparison."""
    table = Table(box=None, pad_edge=False)
    names = (f"{escape(r['model']['name'])}\n{r['target']['name']}" for r in (a, b))
    for i, column in enumerate(("", *names, "ratio")):
        table.add_column(column, justify="left" if i == 0 else "right")
    for name, left, right in rows(a, b, workloads, machine):
        ratio = f"{right / left:.3f}" if left else ""
        table.add_row(name, f"{left:,.6g}", f"{right:,.6g}", ratio)
    console.print(table)
