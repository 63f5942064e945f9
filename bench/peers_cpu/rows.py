"""What a session found, as the rows of bench/results/cpu-peers.json."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.peers_cpu.catalog import Figure, Weights
from bench.peers_cpu.machine import Machine

Row = dict[str, Any]
_KEY = ("figure", "model", "weights", "machine", "threads")
QUIET = 0.05
"""Share of the machine that others may use in a timing before it counts as disturbed."""


@dataclass(frozen=True)
class Size:
    """A model: bytes its matrices take for one token, and multiply-adds in them, times two.

    `prefill_flops` leaves out the head, which only the last token of a prompt needs.
    """

    weight_bytes: int
    flops: int
    prefill_flops: int


@dataclass(frozen=True)
class Limit:
    """What the machine could do, measured between the timings: one entry for each reading."""

    read_bytes_per_s: Sequence[float]
    rates: Mapping[str, Sequence[float]]

    def read(self) -> float:
        """Median bytes a second."""
        return statistics.median(self.read_bytes_per_s)

    def rate(self, operands: Sequence[str]) -> tuple[str, float] | None:
        """The fastest instruction for any of those operands; None if none was measured."""
        usable = {
            name: statistics.median(values)
            for name, values in self.rates.items()
            if values and name.partition(":")[0] in operands
        }
        return max(usable.items(), key=lambda item: item[1], default=None)


FLOATS = ("fp32", "bf16")


def operands(weights: Weights, *, int8: bool) -> tuple[str, ...]:
    """What products may be made of: int8 if asked for, else what rounds no activation to it."""
    if int8:
        return ("int8",)
    return (*FLOATS, "int16") if weights.quantised else FLOATS


@dataclass(frozen=True)
class Timing:
    """One value of one engine in one round; `first_tokens` are what it said first."""

    value: float
    foreign: float
    first_tokens: tuple[int, ...] = ()


@dataclass(frozen=True)
class Column:
    """One engine in a row: its timings by round, or why there are none."""

    timings: Sequence[Timing]
    failed: str | None = None

    def chosen(self) -> list[float]:
        """The undisturbed values if they are half of all, else all."""
        quiet = [t.value for t in self.timings if t.foreign <= QUIET]
        return quiet if 2 * len(quiet) >= len(self.timings) else [t.value for t in self.timings]

    def median(self) -> float | None:
        """None if it failed."""
        return None if self.failed or not self.timings else statistics.median(self.chosen())

    def disturbed(self) -> float:
        """Share of the timings in which others had more of the machine than is allowed."""
        return sum(t.foreign > QUIET for t in self.timings) / max(1, len(self.timings))


def share_of_limit(
    figure: Figure, value: float, size: Size, limit: Limit, kinds: Sequence[str]
) -> tuple[float, str] | None:
    """The least time the machine needs, over the time it took, and which limit that is.

    Decode must read every weight once a step and multiply it with each sequence; the longer of the
    two bounds it. `kinds`: what products may be made of (see `operands`). None for seconds and
    bytes, and where the arithmetic was not measured.
    """
    if figure.kind not in ("decode", "prefill"):
        return None
    rate = limit.rate(kinds)
    if figure.kind == "prefill":
        return None if rate is None else (value * size.prefill_flops / rate[1], rate[0])
    step_s = figure.batch / value
    reading_s = size.weight_bytes / limit.read()
    multiplying_s = 0.0 if rate is None else figure.batch * size.flops / rate[1]
    if rate is None or reading_s >= multiplying_s:
        return reading_s / step_s, "read"
    return multiplying_s / step_s, rate[0]


def best(figure: Figure, peers: Mapping[str, Column]) -> str | None:
    """The name of the peer to beat; None if none ran."""
    ran = {name: median for name, column in peers.items() if (median := column.median())}
    choose = min if figure.less_is_better else max
    return choose(ran, key=lambda name: ran[name], default=None)


def ratio(figure: Figure, ours: Column, theirs: Column) -> float | None:
    """How many times as good as a peer, by medians: above 1 is ahead."""
    mine, other = ours.median(), theirs.median()
    if not mine or not other:
        return None
    return other / mine if figure.less_is_better else mine / other


def agreement(ours: Column, theirs: Column) -> float | None:
    """Share of the first new tokens that are the same, over rounds and sequences."""
    pairs = [
        a == b
        for mine, other in zip(ours.timings, theirs.timings, strict=False)
        for a, b in zip(mine.first_tokens, other.first_tokens, strict=True)
    ]
    return sum(pairs) / len(pairs) if pairs else None


@dataclass(frozen=True)
class Setting:
    """What all rows of one model in one session share."""

    weights: Weights
    size: Size
    machine: Machine
    threads: int
    date: str


def make_row(
    setting: Setting, figure: Figure, limit: Limit, ours: Column, peers: Mapping[str, Column],
    *, peer_weights: str | None = None, int8: bool = False,
) -> Row:  # fmt: skip
    """One row; `peer_weights`: what the peers made of the file's weights, None: they run those."""
    mine = ours.median()
    kinds = operands(setting.weights, int8=int8)
    share = share_of_limit(figure, mine, setting.size, limit, kinds) if mine else None
    label = [setting.weights.weights, *["int8 activations"] * int8]
    ahead_of = best(figure, peers)
    times = ratio(figure, ours, peers[ahead_of]) if ahead_of else None
    columns = {"inferc": ours, **peers}
    return {
        "figure": figure.name,
        "unit": figure.unit,
        "model": setting.weights.model,
        "weights": ", ".join(label + [f"peer {peer_weights}"] * (peer_weights is not None)),
        "stored": setting.weights.weights,
        "arithmetic": "int8" if int8 else "default",
        "peer_weights": peer_weights,
        "equal_weights": peer_weights is None,
        "weight_bytes": setting.size.weight_bytes,
        "inferc": _value(ours),
        "peers": {name: _value(column) for name, column in peers.items()},
        "best_peer": ahead_of,
        "ratio": _round(times) if times else None,
        "share_of_limit": _round(share[0]) if share else None,
        "limit": _limit(limit, share[1]) if share else None,
        "spread": {
            name: [_round(min(c.chosen())), _round(max(c.chosen()))]
            for name, c in columns.items()
            if c.timings and not c.failed
        },
        "disturbed": {name: _round(c.disturbed()) for name, c in columns.items() if c.disturbed()},
        "same_first_token": {
            name: _round(same)
            for name, c in peers.items()
            if (same := agreement(ours, c)) is not None
        },
        "rounds": max((len(column.timings) for column in columns.values()), default=0),
        "machine": asdict(setting.machine),
        "threads": setting.threads,
        "date": setting.date,
    }


def _value(column: Column) -> float | str:
    median = column.median()
    return f"failed: {column.failed or 'not run'}" if median is None else _round(median)


def _limit(limit: Limit, name: str) -> Row:
    if name == "read":
        values, unit, scale = limit.read_bytes_per_s, "GB/s", 1e9
    else:
        values, unit, scale = limit.rates[name], "Gop/s", 1e9
    scaled = [value / scale for value in values]
    return {
        "name": name,
        "unit": unit,
        "median": _round(statistics.median(scaled)),
        "spread": [_round(min(scaled)), _round(max(scaled))],
    }


def _round(value: float) -> float:
    """Four digits are more than any timing here has."""
    return float(f"{value:.4g}")


def row_key(row: Row) -> str:
    """What a row is of; a later row with the same key takes its place."""
    return json.dumps([row[name] for name in _KEY], sort_keys=True)


def merge(old: Sequence[Row], new: Sequence[Row]) -> list[Row]:
    """Old rows with those of the same key replaced; new ones at the end.

    A peer that was not part of the new run keeps nothing: its old value would stand beside values
    of another hour.
    """
    fresh = {row_key(row): row for row in new}
    kept = [fresh.pop(row_key(row), row) for row in old]
    return kept + list(fresh.values())


def read_rows(path: Path) -> list[Row]:
    """The rows of a file; none if there is no file yet. Raises SystemExit if it holds others."""
    if not path.exists():
        return []
    rows: list[Row] = json.loads(path.read_text(encoding="utf-8"))
    if any(name not in row for row in rows for name in _KEY):
        raise SystemExit(f"{path}: expected rows with {', '.join(_KEY)}")
    return rows


def write_rows(path: Path, new: Sequence[Row]) -> None:
    """Merge into the file, which is whole at any time."""
    merged = merge(read_rows(path), new)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text("[\n" + ",\n".join(json.dumps(row) for row in merged) + "\n]\n", "utf-8")
    part.replace(path)
