"""Figures as plain data: shares of the machine's limits, the file, and the tables in the docs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BEGIN, END = "<!-- gpu: made by `make gpu` -->", "<!-- /gpu -->"
TARGETS = {
    "decode 1 x": 0.88,
    "decode 1 x, int4": 0.75,
    "decode attention": 0.85,
    "prefill products": 0.80,
    "prefill attention": 0.65,
}
"""Shares of the limit that are asked for (issue 4): of the whole step at batch 1, and of parts."""


@dataclass(frozen=True)
class Limits:
    """What the machine does at best, measured in the same run."""

    copy_bytes_per_second: float
    bf16_flops_per_second: float


@dataclass(frozen=True)
class Check:
    """A test of correctness. `passed` is None if it was not run, and `detail` says why."""

    name: str
    passed: bool | None
    detail: str


@dataclass(frozen=True)
class Figure:
    """One workload on one engine. `seconds` is None if it did not run, and `note` says why."""

    engine: str
    model: str
    workload: str
    kind: str
    batch: int
    tokens: int
    seconds: float | None
    must_move_bytes: float | None = None
    flops: float | None = None
    note: str = ""

    def share(self, limits: Limits) -> float | None:
        """Of the time that bytes (decode) or flops (prefill) take at the machine's limit."""
        if self.seconds is None:
            return None
        if self.kind == "decode" and self.must_move_bytes:
            return self.must_move_bytes / limits.copy_bytes_per_second / self.seconds
        if self.kind == "prefill" and self.flops:
            return self.flops / limits.bf16_flops_per_second / self.seconds
        return None


@dataclass
class Results:
    """Everything of one run."""

    machine: Mapping[str, Any]
    limits: Limits | None = None
    checks: list[Check] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether no check failed; one that was not run is no success either, but is shown."""
        return all(check.passed is not False for check in self.checks)

    def write(self, path: Path) -> None:
        """The file of the run, with shares."""
        data = asdict(self)
        if self.limits is not None:
            for figure, entry in zip(self.figures, data["figures"], strict=True):
                entry["share"] = figure.share(self.limits)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def read(path: Path) -> Results:
    """Read back what `write` wrote."""
    data = json.loads(path.read_text(encoding="utf-8"))
    known = Figure.__dataclass_fields__
    return Results(
        data["machine"],
        Limits(**data["limits"]) if data["limits"] else None,
        [Check(**check) for check in data["checks"]],
        [Figure(**{k: v for k, v in f.items() if k in known}) for f in data["figures"]],
    )


def table(results: Results) -> str:
    """A section for the docs."""
    machine = ", ".join(f"{value}" for value in results.machine.values())
    lines = [f"Measured on {machine}.", ""]
    if results.limits is not None:
        copy, rate = results.limits.copy_bytes_per_second, results.limits.bf16_flops_per_second
        lines += [
            f"Limits measured: copy {copy / 1e9:.0f} GB/s, bf16 {rate / 1e12:.0f} TFLOP/s.",
            "",
        ]
    lines += _checks(results.checks)
    for model in dict.fromkeys(figure.model for figure in results.figures):
        lines += [f"### {model}", "", *_figures(results, model), ""]
    return "\n".join(lines).rstrip() + "\n"


def _checks(checks: Sequence[Check]) -> list[str]:
    if not checks:
        return []
    words = {True: "passed", False: "FAILED", None: "not run"}
    rows = [f"| {c.name} | {words[c.passed]} | {c.detail} |" for c in checks]
    return ["| check | result | |", "|---|---|---|", *rows, ""]


def _figures(results: Results, model: str) -> Iterable[str]:
    figures = [f for f in results.figures if f.model == model]
    engines = list(dict.fromkeys(f.engine for f in figures))
    yield f"| workload | {' | '.join(engines)} | of the limit | asked for |"
    yield "|---|" + "---|" * (len(engines) + 2)
    for workload in dict.fromkeys(f.workload for f in figures):
        row = {f.engine: f for f in figures if f.workload == workload}
        ours = row.get("inferc")
        share = ours.share(results.limits) if ours and results.limits else None
        target = _target(model, workload)
        cells = [_cell(row.get(engine)) for engine in engines]
        yield (
            f"| {workload} | {' | '.join(cells)} | {'' if share is None else f'{share:.0%}'} |"
            f" {'' if target is None else f'{target:.0%}'} |"
        )


def _target(model: str, workload: str) -> float | None:
    """What is asked for of a workload, `decode 8 x 1k`, or of its part, `…: attention`."""
    whole, _, part = workload.partition(": ")
    if part:
        return TARGETS.get(f"{whole.partition(' ')[0]} {part}")
    if not whole.startswith("decode 1 x"):
        return None
    return TARGETS["decode 1 x, int4" if model.endswith("-int4") else "decode 1 x"]


def _cell(figure: Figure | None) -> str:
    if figure is None:
        return ""
    if figure.seconds is None:
        return figure.note or "did not run"
    rate = figure.tokens / figure.seconds
    return f"{figure.seconds * 1e3:.2f} ms, {rate:.0f} tokens/s"


def put_into_docs(path: Path, name: str, section: str) -> None:
    """Replace what stands between the marks; other machines' sections stay."""
    text = path.read_text(encoding="utf-8")
    before, found, rest = text.partition(BEGIN)
    inside, ended, after = rest.partition(END)
    if not (found and ended):
        raise SystemExit(f"{path}: expected the marks {BEGIN} and {END}")
    parts = inside.split("\n## GPU: ")
    kept = [part for part in parts[1:] if part.partition("\n")[0] != name]
    sections = sorted([*kept, f"{name}\n\n{section.rstrip()}\n"])
    body = "".join("\n## GPU: " + part for part in sections)
    path.write_text(before + BEGIN + "\n" + body + END + after, encoding="utf-8")
