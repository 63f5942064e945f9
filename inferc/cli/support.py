"""`inferc support`: which architectures compile, and how it is known."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import inferc
from inferc.errors import InfercError

RECORDS = Path(inferc.__file__).resolve().parents[1] / "docs" / "support.json"
COLUMNS = (
    "model type", "captures", "raises", "float32", "bfloat16", "GGUF", "ONNX", "quantised",
    "prefix cache", "window", "state",
)  # fmt: skip
_FIELDS = {
    "model_type", "captures", "interpreted", "raises", "passes", "float32", "bfloat16", "gguf",
    "onnx", "onnx_refusal", "quantised", "prefix_cache", "windows", "states", "refusal",
    "revision",
}  # fmt: skip
_HEAD = """# Architectures

Made of the records in `docs/support.json`; `make support` measures and writes both.

Each model type of transformers' AutoModelForCausalLM is built small with random weights
(`tests/architectures.py`), captured, put through all passes, compiled and run. Types that pick the
keys of a query by an index are built for contexts that the index selects whole; longer ones are
refused.

- **captures**: the relative error of the captured graph against transformers, in float32.
- **raises**: the relative error of the step functions behind all passes, in float64.
- **float32**: the relative error of the compiled artifact against transformers, for a prompt past
  every window and over three pages, in one piece, in chunks and token by token (bit for bit alike);
  against transformers in float64 where its own float32 is half the tolerance away from that.
- **bfloat16**: the error of the artifact of a bfloat16 checkpoint over the error that transformers
  makes in bfloat16, both against float64.
- **GGUF**: the largest relative error of GGUF files of the type, written as llama.cpp's converter
  writes them; empty where inferc does not read that architecture from GGUF.
- **ONNX**: the relative error of torch.onnx's export (opset 18) against ONNX Runtime, on the
  imported graph; empty where torch does not export it or inferc refuses the file (see below).
- **quantised**: the methods (`tests/quantised_models.py`) whose small checkpoints of the type,
  imported and interpreted, are at parity with their dequantised weights; few types are tried.
- **prefix cache**: whether a prompt seen before takes its pages from the cache.
- **window**: sliding windows and chunks of the small model, in tokens; **state**: what a sequence
  keeps, `kv` heads x head size for attention and `state` sizes for recurrent ops.

"""


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:  # type: ignore[type-arg]
    """Declare the command."""
    p: argparse.ArgumentParser = commands.add_parser(
        "support",
        help="which architectures compile",
        description="List the architectures of transformers and how far each gets.",
    )
    p.add_argument("filter", nargs="?", default="", help="a part of the model type")
    return p


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    rows = [r for r in read_records() if args.filter in r["model_type"]]
    if not rows:
        raise InfercError(f"No model type has '{args.filter}' in its name.")
    cells = [COLUMNS, *(row_of(r) for r in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(COLUMNS))]
    for line, record in zip(cells, [None, *rows], strict=True):
        text = "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True))
        print(f"{text}  {record['refusal'] if record else ''}".rstrip())
    print(summary(rows))
    return 0


def read_records() -> list[dict[str, Any]]:
    """The records. Raises InfercError where they are not installed."""
    if not RECORDS.is_file():
        raise InfercError(
            f"There is no {RECORDS.name} beside this installation; it is part of the source tree "
            "(docs/support.json)."
        )
    records: list[dict[str, Any]] = json.loads(RECORDS.read_text(encoding="utf-8"))
    old = [r["model_type"] for r in records if not r.keys() >= _FIELDS]
    if old:
        raise InfercError(
            f"{RECORDS} was written before the table had its present columns: {len(old)} of "
            f"{len(records)} records lack some ({', '.join(old[:3])}). Measure again: make support."
        )
    return records


def row_of(record: Mapping[str, Any]) -> tuple[str, ...]:
    """The cells of a record, by `COLUMNS`."""
    return (
        record["model_type"],
        _error(record["captures"], record["interpreted"]),
        _error(record["raises"], record["passes"]),
        _error(record["float32"] is not None and not record["refusal"], record["float32"]),
        "" if record["bfloat16"] is None else f"{record['bfloat16']:.2f}",
        _error(True, record["gguf"]),
        _error(True, record["onnx"]),
        " ".join(record["quantised"]),
        {None: "", True: "yes", False: "no"}[record["prefix_cache"]],
        " ".join(record["windows"]),
        ", ".join(record["states"]),
    )


def _error(good: bool | None, error: float | None) -> str:
    return f"{error:.0e}" if good and error is not None else ""


def summary(records: Sequence[Mapping[str, Any]]) -> str:
    """One line of counts."""
    captured = sum(bool(r["captures"]) for r in records)
    raised = sum(bool(r["raises"]) for r in records)
    compiled = sum(r["float32"] is not None and not r["refusal"] for r in records)
    return (
        f"{len(records)} model types: {captured} captured, {raised} raised, "
        f"{compiled} compiled at float32 parity."
    )


def as_markdown(records: Sequence[Mapping[str, Any]]) -> str:
    """The page `docs/support.md`."""
    works = [r for r in records if not r["refusal"]]
    stopped = [r for r in records if r["refusal"]]
    revisions = ", ".join(sorted({r["revision"] for r in records}))
    lines = [_HEAD + summary(records), f"Measured at revision {revisions}."]
    lines += ["", "| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    lines += ["| " + " | ".join(row_of(r)) + " |" for r in works]
    lines += ["", "## What stops the others", "", *_reasons(stopped, "refusal")]
    unread = [r for r in works if r["onnx_refusal"]]
    lines += [
        "",
        "## Exports of torch.onnx that do not compile",
        "",
        *_reasons(unread, "onnx_refusal"),
    ]
    return "\n".join(lines) + "\n"


def _reasons(records: Sequence[Mapping[str, Any]], field: str) -> list[str]:
    lines = [f"| {r['model_type']} | {r[field].replace('|', chr(92) + '|')} |" for r in records]
    return ["| model type | reason |", "| --- | --- |", *lines]
