"""The CPU part of docs/performance.md, from the rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.peers_cpu.catalog import FIGURES, INFERC, INFERC_INT8
from bench.peers_cpu.footnotes import FOOTNOTES, marks
from bench.peers_cpu.rows import Row

BEGIN = "<!-- cpu: made by `python bench/peers.py report` -->"
END = "<!-- /cpu -->"
_ORDER = list(FIGURES)
_SPEEDS = [name for name, figure in FIGURES.items() if not figure.less_is_better]


def section(rows: Sequence[Row]) -> str:
    """Everything between the marks: a part for each machine and number of threads."""
    if not rows:
        return "No run so far.\n"
    parts = []
    for key in dict.fromkeys(_where(row) for row in rows):
        of_machine = [row for row in rows if _where(row) == key]
        parts.append("\n".join(_machine(of_machine)))
    return "\n".join(parts)


def _where(row: Row) -> str:
    return json.dumps([row["machine"], row["threads"]], sort_keys=True)


@dataclass(frozen=True)
class _Table:
    """One model: peers that run its weights as stored, or peers that quantised them anew.

    Rows by figure, with inferc's default arithmetic and with int8 activations where measured.
    """

    model: str
    stored: str
    equal_weights: bool
    default: dict[str, list[Row]]
    int8: dict[str, list[Row]]

    def figures(self) -> list[str]:
        return sorted(self.default | self.int8, key=_ORDER.index)


def _tables(rows: Sequence[Row], *, equal_weights: bool) -> list[_Table]:
    found: dict[tuple[str, str], _Table] = {}
    for row in rows:
        if row["equal_weights"] == equal_weights:
            key = row["model"], row["stored"]
            table = found.setdefault(key, _Table(*key, equal_weights, {}, {}))
            kind = table.int8 if row["arithmetic"] == "int8" else table.default
            kind.setdefault(row["figure"], []).append(row)
    return list(found.values())


def _machine(rows: Sequence[Row]) -> Iterable[str]:
    machine = rows[0]["machine"]
    dates = sorted({row["date"] for row in rows})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    yield f"### {machine['cpu']}, {machine['isa']}, {rows[0]['threads']} threads"
    yield ""
    yield f"Measured {when}. What this machine can do at best, read between the timings, medians"
    yield "(least to most):"
    yield ""
    yield from _limits(rows)
    yield ""
    equal = _tables(rows, equal_weights=True)
    if any(name in table.default for table in equal for name in _SPEEDS):
        yield "**At a glance**: inferc's share of what the machine can do, and how many times as"
        yield "fast it is as the fastest peer on the same weights. Details follow for each model."
        yield ""
        yield from _glance(equal)
        yield ""
    anew = {(t.model, t.stored): t for t in _tables(rows, equal_weights=False)}
    for table in equal:
        yield f"#### {table.model}, {table.stored} weights"
        yield ""
        yield from _lines(table)
        other = anew.pop((table.model, table.stored), None)
        if other is not None:
            yield "Beside engines that quantise the weights a second time:"
            yield ""
            yield from _lines(other)
    for table in anew.values():
        yield f"#### {table.model}, {table.stored} weights, quantised a second time by the peers"
        yield ""
        yield from _lines(table)
    yield from FOOTNOTES


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
        shown = "reading memory" if name == "read" else f"arithmetic, `{name}`"
        yield f"- {shown}: {middle:g} {unit} ({least:g} to {most:g})"


def _glance(tables: Sequence[_Table]) -> Iterable[str]:
    yield from _head(["model, weights", *_SPEEDS])
    for table in tables:
        cells = [_short(table.default.get(name, [])) for name in _SPEEDS]
        yield _line([f"{table.model}, {table.stored}", *cells])


def _short(rows: Sequence[Row]) -> str:
    """Share and ratio of the only row there is."""
    if not rows:
        return ""
    row = rows[0]
    share, ratio = row["share_of_limit"], row["ratio"]
    parts = ["" if share is None else f"{share:.0%}", "" if ratio is None else f"{ratio:.2f}x"]
    return ", ".join(part for part in parts if part)


def _lines(table: _Table) -> Iterable[str]:
    """The table, the reasons of what failed, and an empty line."""
    rows = [row for kind in (table.default, table.int8) for of in kind.values() for row in of]
    peers = list(dict.fromkeys(name for row in rows for name in row["peers"]))
    ours = {
        name: kind
        for name, kind in ((INFERC, table.default), (INFERC_INT8, table.int8))
        if kind
    }  # fmt: skip
    head = ["figure"]
    for name in ours:
        head += [name + marks(name, table.stored), "of the limit", "against the best"]
    yield from _head(head + [name + marks(name, table.stored) for name in peers])
    for figure in table.figures():
        cells = [f"{figure}, {FIGURES[figure].unit}"]
        for kind in ours.values():
            cells += _own_cells(kind.get(figure, []))
        every = [row for kind in ours.values() for row in kind.get(figure, [])]
        yield _line(
            cells + [_first(every, lambda row, name=name: _cell(row, name)) for name in peers]
        )
    yield ""
    yield from _failures(rows, ours)


def _own_cells(rows: Sequence[Row]) -> list[str]:
    """Value, share of the limit, and the ratio to the best of all peers of the table."""
    ratios = [row["ratio"] for row in rows if row["ratio"] is not None]
    return [
        _first(rows, lambda row: _cell(row, INFERC)),
        _first(rows, _share),
        f"{min(ratios):.2f}x" if ratios else "",
    ]


def _share(row: Row) -> str:
    share = row["share_of_limit"]
    return "" if share is None else f"{share:.0%} of {_limit_name(row)}"


def _first(rows: Sequence[Row], cell: Callable[[Row], str]) -> str:
    return next((text for row in rows if (text := cell(row))), "")


def _failures(rows: Sequence[Row], ours: Iterable[str]) -> Iterable[str]:
    said = {(n, v) for row in rows for n, v in row["peers"].items() if isinstance(v, str)}
    for row in rows:
        if isinstance(row["inferc"], str):
            name = INFERC_INT8 if row["arithmetic"] == "int8" else INFERC
            said |= {(name, row["inferc"])} if name in ours else set()
    yield from (f"- {name}: {reason}" for name, reason in sorted(said))
    if said:
        yield ""


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


def _head(names: Sequence[str]) -> Iterable[str]:
    yield _line(names)
    yield "|---" * len(names) + "|"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def put_into_docs(path: Path, text: str) -> None:
    """Replace what stands between the marks. Raises SystemExit where they are missing."""
    before, found, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not (found and ended):
        raise SystemExit(f"{path}: expected the marks {BEGIN} and {END}")
    path.write_text(f"{before}{BEGIN}\n\n{text.rstrip()}\n\n{END}{after}", encoding="utf-8")
