"""Takes every architecture of transformers as far as it goes, and writes what happened.

    python -m tools.survey phi opt             show the records of two architectures
    python -m tools.survey --passes            all, up to the passes: about ten minutes
    python -m tools.survey --write             all, compiled and run: about half an hour
    python -m tools.survey --write phi opt     these two, the other records stay

`docs/support.json` holds the records, `docs/support.md` the same as a table; both are written by
`--write` and never edited.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import multiprocessing
import os
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from pathlib import Path
from queue import Queue
from typing import Any

from inferc.cli.support import as_markdown
from tests import architectures

DOCS = Path(__file__).resolve().parents[1] / "docs"
JSON, MARKDOWN = DOCS / "support.json", DOCS / "support.md"
_SECONDS_MAX = 900

Row = dict[str, Any]


def main() -> None:
    """Run the survey."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", help="model types; all if there are none")
    parser.add_argument("--passes", action="store_true", help="do not compile")
    parser.add_argument("--float32", action="store_true", help="leave bfloat16 checkpoints out")
    parser.add_argument("--write", action="store_true", help="write docs/support.*")
    args = parser.parse_args()
    names = args.names or list(architectures.model_types())
    dtypes = () if args.passes else ("float32",) if args.float32 else ("float32", "bfloat16")
    for row in survey(names, dtypes):
        row["revision"] = revision()
        print(json.dumps(row), flush=True)
        if args.write:
            write([row])


def survey(names: list[str], dtypes: tuple[str, ...], workers: int = 2) -> Iterator[Row]:
    """The records in the order of `names`."""
    with ThreadPoolExecutor(workers) as threads:
        examiners = Queue[_Examiner]()
        for _ in range(workers):
            examiners.put(_Examiner())

        def examined(name: str) -> Row:
            examiner = examiners.get()
            try:
                return examiner.row(name, dtypes)
            finally:
                examiners.put(examiner)

        yield from threads.map(examined, names)


class _Examiner:
    """A process of its own, replaced when it dies or hangs."""

    def __init__(self) -> None:
        self.pool = _pool()

    def row(self, name: str, dtypes: tuple[str, ...]) -> Row:
        try:
            return self.pool.submit(_examine, name, dtypes).result(_SECONDS_MAX)
        except Exception as error:  # a record must be written whatever happened to the process
            if isinstance(error, (BrokenProcessPool, TimeoutError)):
                for process in self.pool._processes.values():
                    process.kill()
                self.pool = _pool()
            text = " ".join(str(error).split())[:300]
            return _plain(name, f"internal: {type(error).__name__}: {text}")


def _pool() -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, mp_context=context, initializer=_prepare)


def write(rows: list[Row]) -> None:
    """Put rows into the records, and write the table anew."""
    known = json.loads(JSON.read_text(encoding="utf-8")) if JSON.is_file() else []
    by_type = {r["model_type"]: r for r in known} | {r["model_type"]: r for r in rows}
    kept = [by_type[name] for name in sorted(by_type) if name in architectures.model_types()]
    lines = ",\n".join(json.dumps(row) for row in kept)
    JSON.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    MARKDOWN.write_text(as_markdown(kept), encoding="utf-8")


def _prepare() -> None:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    import torch

    torch.set_num_threads(1)


def _examine(name: str, dtypes: tuple[str, ...]) -> Row:
    from tests.e2e.workshop import Workshop, kernel_cache
    from tools.survey_stages import Examination

    with tempfile.TemporaryDirectory() as folder, kernel_cache():
        examination = Examination(name)
        record = examination.run(Workshop(Path(folder)), dtypes)
    return rounded(dataclasses.asdict(record))


@cache
def revision() -> str:
    """The commit that is measured, with `+` for changes that are in no commit."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*", "--abbrev=10"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _plain(name: str, refusal: str) -> Row:
    from tools.survey_stages import Record

    return rounded(dataclasses.asdict(Record(name, refusal=refusal)))


def rounded(row: Row) -> Row:
    """Errors to their order of magnitude, so that a record changes only when something does."""
    for name in ("interpreted", "passes", "float32", "gguf", "onnx"):
        if row[name] is not None:
            row[name] = float(f"{row[name]:.0e}")
    if row["bfloat16"] is not None:
        row["bfloat16"] = round(row["bfloat16"], 2)
    return row


if __name__ == "__main__":
    main()
