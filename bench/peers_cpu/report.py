"""The CPU part of docs/performance.md, from the rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.peers_cpu.catalog import FIGURES, INFERC
from bench.peers_cpu.rows import Row

BEGIN = "<!-- cpu: made by `python bench/peers.py report` -->"
END = "<!-- /cpu -->"
_ORDER = list(FIGURES)


def section(rows: Sequence[Row]) -> str:
    """Everything between the marks: a part for each machine and number of threads."""
    if not rows:
        return "No run so far.\n"
    parts = []
    for key in dict.fromkeys(_where(row) for row in rows):
        of_machine = [row for row in rows if _where(row) == key]
        parts.append(_machine(of_machine))
    return "\n".join(parts)


def _where(row: Row) -> str:
    return json.dumps([row["machine"], row["threads"]], sort_keys=True)


def _machine(rows: Sequence[Row]) -> str:
    machine = rows[0]["machine"]
    dates = sorted({row["date"] for row in rows})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    lines = [
        f"### {machine['cpu']}, {machine['isa']}, {rows[0]['threads']} threads",
        "",
        f"Measured {when}. Limits, read between the timings, medians (least to most):",
        "",
        *_limits(rows),
        "",
    ]
    for equal in (True, False):
        for model, weights in dict.fromkeys((row["model"], row["weights"]) for row in rows):
            found = [
                row
                for row in rows
                if (row["model"], row["weights"], row["equal_weights"]) == (model, weights, equal)
            ]
            if found:
                lines += [f"#### {model}, {weights}", "", *_table(found), ""]
    return "\n".join(lines)


def _limits(rows: Sequence[Row]) -> Iterable[str]:
    names = dict.fromkeys(
        (row["limit"]["name"], row["limit"]["unit"]) for row in rows if row["limit"]
    )
    for name, unit in names:
        found = [row["limit"] for row in rows if row["limit"] and row["limit"]["name"] == name]
        medians = sorted(limit["median"] for limit in found)
        least = min(limit["spread"][0] for limit in found)
        most = max(limit["spread"][1] for limit in found)
        middle = medians[len(medians) // 2]
        shown = "memory read" if name == "read" else f"`{name}`"
        yield f"- {shown}: {middle:g} {unit} ({least:g} to {most:g})"


def _table(rows: Sequence[Row]) -> Iterable[str]:
    peers = list(dict.fromkeys(name for row in rows for name in row["peers"]))
    yield f"| figure | {INFERC} | of the limit | {' | '.join(peers)} | against the best |"
    yield "|---|" + "---|" * (len(peers) + 3)
    for row in sorted(rows, key=lambda row: _ORDER.index(row["figure"])):
        cells = [_cell(row, name) for name in peers]
        share = row["share_of_limit"]
        ahead = "" if row["ratio"] is None else f"{row['ratio']:.2f}x"
        limit = "" if share is None else f"{share:.0%} of {_limit_name(row)}"
        yield (
            f"| {row['figure']}, {row['unit']} | {_cell(row, INFERC)} | {limit} |"
            f" {' | '.join(cells)} | {ahead} |"
        )
    failures = {(n, v) for row in rows for n, v in row["peers"].items() if isinstance(v, str)}
    failures |= {(INFERC, row["inferc"]) for row in rows if isinstance(row["inferc"], str)}
    if failures:
        yield ""
        yield from (f"{name}: {reason}.  " for name, reason in sorted(failures))


def _limit_name(row: Row) -> str:
    name = row["limit"]["name"]
    return "reading" if name == "read" else str(name).partition(":")[0]


def _cell(row: Row, name: str) -> str:
    """Median (least to most), with a star where others used the machine in most timings."""
    value = row["inferc"] if name == INFERC else row["peers"].get(name)
    if value is None:
        return ""
    if isinstance(value, str):
        return "failed"
    star = "\\*" if row["disturbed"].get(name, 0) > 0.5 else ""
    least, most = row["spread"][name]
    return f"{value:.4g}{star}" + ("" if least == most else f" ({least:.4g}-{most:.4g})")


def put_into_docs(path: Path, text: str) -> None:
    """Replace what stands between the marks. Raises SystemExit where they are missing."""
    before, found, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not (found and ended):
        raise SystemExit(f"{path}: expected the marks {BEGIN} and {END}")
    path.write_text(f"{before}{BEGIN}\n\n{text.rstrip()}\n\n{END}{after}", encoding="utf-8")
