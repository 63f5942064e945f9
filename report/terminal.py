"""`inferc inspect` in the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from inferc.ir.cost import Workload
from inferc.report.fit import Fit, fit, state_bytes
from inferc.report.machines import Machine
from inferc.report.model import Phase, Report, phase

BOUND = "(a bound: bytes at full bandwidth or flops at full rate, not a promise)"
NOT_COUNTED = "not counted: Python, tokenizer, logits of the step"


def show(
    report: Report, machine: Machine, workloads: Mapping[str, Workload], console: Console
) -> None:
    """Print the whole report."""
    _model(report, console)
    for name, workload in workloads.items():
        _phase(phase(report, name, workload, machine), workload, machine, console)
    _memory(report, machine, console)
    _passes(report, console)


def bytes_text(count: float) -> str:
    """A byte count for people."""
    for unit in ("B", "KB", "MB", "GB"):
        if abs(count) < 999.5 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{figure(count)} {unit}"
        count /= 1000
    raise AssertionError


def figure(value: float) -> str:
    """Three digits, or all before the point if those are more; `~0` for less than a thousandth."""
    if 0 < abs(value) < 1e-3:
        return "~0"
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def make_table(title: str, columns: Iterable[str], right: int = 99) -> Table:
    """A plain table; columns from number `right` on are set to the right."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i >= right else "left", overflow="fold")
    return table


def _model(report: Report, console: Console) -> None:
    model, kv = report["model"], report["kv"]
    table = make_table(escape(f"{model['name']}  ({model['architecture']})"), ("", ""))
    rows = {
        "layers, hidden, vocabulary": ", ".join(
            str(model[key]) for key in ("layers", "hidden_size", "vocab_size")
        ),
        "parameters": f"{model['parameters'] / 1e6:.1f} M, "
        f"{bytes_text(model['parameter_bytes'])} as stored",
        "target": _target(report["target"]),
        "options": ", ".join(f"{k}={v}" for k, v in report["options"].items()),
        "KV cache": f"{bytes_text(kv['bytes_per_token'])} a token, {kv['dtype']}, "
        f"pages of {kv['page_tokens']} tokens ({bytes_text(kv['page_bytes'])})",
    }
    for name, text in rows.items():
        table.add_row(name, text)
    console.print(table, "")


def _target(target: Mapping[str, Any]) -> str:
    """All targets of the artifact, and of which of them the kernels below are."""
    first = target.get("kernels_of", target["name"])
    return target["name"] + ("" if first == target["name"] else f" (kernels shown: {first})")


def _phase(result: Phase, workload: Workload, machine: Machine, console: Console) -> None:
    title = (
        f"{result.name}: {workload.tokens} rows, {workload.sequences} sequences, context "
        f"{workload.context_tokens}; predicted for {machine.name}"
    )
    table = make_table(
        title, ("block / kernel", "modules", "MFLOP", "moved", "flop/B", "bound", "us"), 2
    )
    for block in result.blocks:
        repeats = len(block.paths)
        table.add_row(f"[bold]{block.title}[/]")
        for kernel in block.kernels:
            table.add_row(
                f"  {kernel.name}", kernel.module_names, figure(kernel.flops / 1e6),
                bytes_text(kernel.bytes_moved), f"{kernel.intensity:.2f}", kernel.bound,
                f"{kernel.predicted_us:.1f}" + (f" x{repeats}" if repeats > 1 else ""),
            )  # fmt: skip
    console.print(table)
    console.print(
        f"total {figure(result.flops / 1e6)} MFLOP, {bytes_text(result.bytes_moved)} moved, "
        f"{bytes_text(result.must_move_bytes)} must move: "
        f"traffic ratio [bold]{result.traffic_ratio:.3f}[/], predicted "
        f"{result.predicted_us:.0f} us {BOUND}\n"
    )


def _memory(report: Report, machine: Machine, console: Console) -> None:
    table = make_table("memory", ("", "bytes"), 1)
    for name, text in memory_rows(report).items():
        table.add_row(name, text)
    fitted = fit(report, machine)
    if fitted is not None:
        table.add_row(*_fit_row(fitted))
    table.add_row(NOT_COUNTED, "")
    console.print(table, "")


def memory_rows(report: Report) -> dict[str, str]:
    """What takes memory, and how much. A report of an earlier version may lack some rows."""
    memory, kv, states = report["memory"], report["kv"], state_bytes(report)
    rows = {
        "weights (mapped, shared by processes)": memory["weights_bytes"],
        "arena of one step": memory["arena_bytes"],
    }
    for threads, nbytes in memory.get("scratch_bytes", {}).items():
        rows[f"scratch of {threads} thread{'s' if threads != '1' else ''}"] = nbytes
    if "device_scratch_bytes" in memory:
        rows["scratch of one step"] = memory["device_scratch_bytes"]
    if states:
        rows["recurrent state of a sequence"] = states
    for tokens in (1024, 8192):
        rows[f"KV of {tokens} tokens"] = kv["bytes_per_token"] * tokens
    return {name: bytes_text(nbytes) for name, nbytes in rows.items()}


def _fit_row(fitted: Fit) -> tuple[str, str]:
    where = f"on {fitted.machine}, with {bytes_text(fitted.memory_bytes)} of memory"
    if not fitted.fits:
        return where, f"does not fit: the fixed part is that of {fitted.machines} machines"
    if fitted.kv_tokens is None:
        return where, "fits"
    return where, f"fits, with KV of {fitted.kv_tokens:,} tokens"


def _passes(report: Report, console: Console) -> None:
    table = make_table(
        "passes", ("pass", "ops", "hits", "bytes saved a decode step", "chosen, refused")
    )
    for record in report["passes"]:
        if not record["changed"] and not record["refused"]:
            continue
        saved = record.get("bytes_saved", {}).get("decode")
        table.add_row(
            record["name"],
            f"{record['ops_before']} -> {record['ops_after']}",
            ", ".join(f"{k} {v}" for k, v in record["hits"].items()),
            bytes_text(saved) if saved else "",
            "; ".join(t for t in (_counted(record.get("notes", {})), _refusals(record)) if t),
        )
    console.print(table)


def _refusals(record: dict[str, Any]) -> str:
    counts: dict[str, int] = {}
    for item in record["refused"]:
        counts[item["reason"]] = counts.get(item["reason"], 0) + 1
    return _counted(counts)


def _counted(counts: dict[str, int]) -> str:
    return "; ".join(f"{text} (x{n})" for text, n in counts.items())
