"""Perplexity of artifacts beside the float32 reference on the same stored weights.

    python -m bench.perplexity [--only TEXT] [--tokens 20480] [--threads N]

The text is the help topics of Python's standard library, by the model's own tokenizer, in windows
of 1,024 tokens that each begin anew (with BOS where the model wants one). Every position but a
window's first is scored. `chunks` is the path of prompts, as many tokens a step as it takes;
`token by token` is the path of decode, on the first windows only. The reference is transformers in
float32 on the dequantised weights, computed once a file and cached.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import inferc
from bench.docs_section import PERFORMANCE, put_into_docs
from bench.perplexity_models import CASES, Case, source
from inferc.runtime.engine import Engine
from inferc.runtime.tokenizer import TextTokenizer

HERE = Path(__file__).parent
WINDOW_TOKENS, DECODE_WINDOWS = 1024, 2
CHUNKS, DECODE = "chunks", "token by token"
_ROWS = 128


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--only", default="", help="cases whose name contains this")
    p.add_argument("--tokens", type=int, default=20 * WINDOW_TOKENS)
    p.add_argument("--threads", type=int)
    p.add_argument("--cache", type=Path, default=HERE.parent / ".cache" / "bench" / "perplexity")
    p.add_argument("--out", type=Path, default=HERE / "results" / "cpu-perplexity.json")
    args = p.parse_args()
    args.cache.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        if args.only not in f"{case.model} {case.weights} {case.label}":
            continue
        if not case.known:
            print(f"{case.weights} {case.label}: this compiler has no such option", flush=True)
            continue
        for row in measure(case, args.cache, args.tokens, args.threads):
            rows = merged(read(args.out), row)
            args.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
            print(line(row), flush=True)
    section = report(read(args.out))
    put_into_docs(PERFORMANCE, "perplexity", "python -m bench.perplexity", section)


# -- measuring ------------------------------------------------------------------------------


def measure(case: Case, cache: Path, tokens: int, threads: int | None) -> list[dict[str, Any]]:
    """A row for the path of prompts and one for that of decode."""
    stored = source(case, cache)
    name = "-".join([stored.stem, *(f"{k}-{v}" for k, v in case.options)])
    folder = cache / f"{name}.inferc"
    try:
        inferc.compile(str(stored), str(folder), overwrite=True, **dict(case.options))
    except inferc.errors.CompileError as refusal:
        print(f"{case.weights} {case.label}: refused: {refusal}", flush=True)
        return []
    with inferc.load(folder, threads=threads, check=False) as engine:
        windows = text_windows(engine.tokenizer, tokens)
        wanted = reference(stored, windows, cache)
        few = min(DECODE_WINDOWS, len(windows))
        ways = ((CHUNKS, len(windows), None), (DECODE, few, 1))
        return [
            _row(case, path, windows[:count], wanted[:count], sums(engine, windows[:count], chunk))
            for path, count, chunk in ways
        ]


def help_topics() -> str:
    """The text: the same for all models of a Python version."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def text_windows(tokenizer: TextTokenizer, tokens: int) -> list[list[int]]:
    """Windows of `WINDOW_TOKENS`, `tokens` in all; each begins with BOS if the model adds one."""
    ids = tokenizer.encode(help_topics())
    head = ids[:1] if tokenizer.facts.add_bos else []
    body, step = ids[len(head) :], WINDOW_TOKENS - len(head)
    count = tokens // WINDOW_TOKENS
    if count < 1 or len(body) < count * step:
        raise SystemExit(f"expected {WINDOW_TOKENS} to {len(ids)} tokens, found {tokens}")
    return [head + body[i * step : (i + 1) * step] for i in range(count)]


def sums(engine: Engine, windows: Sequence[Sequence[int]], chunk: int | None) -> list[float]:
    """Negative log-likelihood of each window."""
    return [negative_log_likelihood(engine.logits(ids, chunk), ids) for ids in windows]


def negative_log_likelihood(logits: npt.NDArray[np.floating], ids: Sequence[int]) -> float:
    """Sum over the tokens after the first, in nats; `logits` is `[len(ids), vocab]`."""
    total = 0.0
    for start in range(0, len(ids) - 1, _ROWS):
        targets = np.asarray(ids[start + 1 : start + 1 + _ROWS])
        rows = np.asarray(logits[start : start + len(targets)])
        largest = rows.max(axis=1, keepdims=True)
        log_sums = np.log(np.exp(rows - largest).sum(axis=1, dtype=np.float64))
        chosen = (rows - largest)[np.arange(len(targets)), targets].astype(np.float64)
        total += float((log_sums - chosen).sum())
    return total


def perplexity(log_likelihoods: Sequence[float], windows: Sequence[Sequence[int]]) -> float:
    """exp of the mean over all scored tokens."""
    return math.exp(sum(log_likelihoods) / sum(len(ids) - 1 for ids in windows))


def reference(stored: Path, windows: list[list[int]], cache: Path) -> list[float]:
    """Negative log-likelihoods by transformers in float32, kept by the file's contents."""
    with stored.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    digest.update(json.dumps(windows).encode())
    kept = cache / f"reference-{digest.hexdigest()[:16]}.json"
    if not kept.exists():
        child = subprocess.run(
            [sys.executable, "-m", "bench.perplexity_reference"],
            input=json.dumps({"source": str(stored), "windows": windows}),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            cwd=HERE.parent,
        )
        kept.write_text(child.stdout.splitlines()[-1], encoding="utf-8")
    found: list[float] = json.loads(kept.read_text(encoding="utf-8"))
    return found


def _row(
    case: Case,
    path: str,
    windows: list[list[int]],
    wanted: list[float],
    found: list[float],
) -> dict[str, Any]:
    ours, theirs = perplexity(found, windows), perplexity(wanted, windows)
    return {
        "model": case.model,
        "weights": case.weights,
        "options": case.label,
        "path": path,
        "tokens": sum(map(len, windows)),
        "perplexity": round(ours, 5),
        "reference": round(theirs, 5),
        "relative": float(f"{ours / theirs - 1:.2e}"),
        "limit": case.limit,
    }


# -- the file and the table -----------------------------------------------------------------


def read(path: Path) -> list[dict[str, Any]]:
    """Rows of an earlier run; none without one."""
    rows: list[dict[str, Any]] = json.loads(path.read_text("utf-8")) if path.exists() else []
    return rows


def merged(rows: list[dict[str, Any]], new: dict[str, Any]) -> list[dict[str, Any]]:
    """`rows` with `new` in the place of the same measurement, or at the end."""
    keys = ("model", "weights", "options", "path")
    same = [all(row[k] == new[k] for k in keys) for row in rows]
    kept = [new if equal else row for row, equal in zip(rows, same, strict=True)]
    return kept if any(same) else [*kept, new]


def line(row: dict[str, Any]) -> str:
    """One row of the table."""
    verdict = "yes" if abs(row["relative"]) <= row["limit"] else "**no**"
    cells = (
        row["model"], row["weights"], f"`{row['options']}`", row["path"], f"{row['tokens']:,}",
        f"{row['perplexity']:.4f}", f"{row['reference']:.4f}", f"{row['relative']:+.4%}",
        f"{row['limit']:.1%}", verdict,
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def report(rows: list[dict[str, Any]]) -> str:
    """The section of the docs."""
    head = (
        "| model | weights | options | path | tokens | perplexity | reference | difference | limit"
        " | within |\n|---|---|---|---|---|---|---|---|---|---|"
    )
    text = (
        "## Quality: perplexity\n\nThe text is the help topics of Python's standard library, by"
        f" each model's own tokenizer, in windows of {WINDOW_TOKENS:,} tokens. The reference is"
        " transformers in float32 on the dequantised weights of the same file. `chunks` is the"
        " path of prompts, `token by token` that of decode. With equal arithmetic both give the"
        " same bits. Q8_0 and bf16 of SmolLM2 are made from its Q4_1 file, so their perplexity"
        " differs from that only by the second rounding."
    )
    return "\n".join([text, "", head, *map(line, rows)])


if __name__ == "__main__":
    main()
