"""Golden cases: `.ir` files split by `// -----`.

A case:
    // RUN: fuse-activation{x=1},dce
    // HITS: 2                 (optional: total of counted hits)
    // REFUSED: has other users (optional, repeatable: part of a refusal's reason)
    // LOCATIONS               (optional: print locations too)
    func @f(…) { … }
    // EXPECT                  (or EXPECT-UNCHANGED: the output is the input)
    func @f(…) { … }
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

SPLIT = "// -----"


@dataclass(frozen=True)
class GoldenCase:
    file: Path
    index: int
    run: str
    hits: int | None
    refused: tuple[str, ...]
    locations: bool
    source: str
    expected: str | None  # None: unchanged

    @property
    def id(self) -> str:
        return f"{self.file.stem}-{self.index}"


def read_cases(file: Path) -> list[GoldenCase]:
    chunks = re.split(rf"^{SPLIT}[ -]*$", file.read_text(), flags=re.M)
    return [_read_case(file, i, chunk) for i, chunk in enumerate(chunks)]


def _read_case(file: Path, index: int, text: str) -> GoldenCase:
    where = f"{file.name} case {index}"
    marks = re.findall(r"^// (EXPECT(?:-UNCHANGED)?)[ ]*$", text, flags=re.M)
    if len(marks) != 1:
        raise ValueError(f"{where}: expected one line // EXPECT or // EXPECT-UNCHANGED")
    head, _, tail = text.partition(f"// {marks[0]}")
    run = re.findall(r"^// RUN: *(.+?) *$", head, flags=re.M)
    if len(run) != 1:
        raise ValueError(f"{where}: expected one line // RUN: passes")
    hits = re.findall(r"^// HITS: *(\d+) *$", head, flags=re.M)
    return GoldenCase(
        file,
        index,
        run[0],
        int(hits[0]) if hits else None,
        tuple(re.findall(r"^// REFUSED: *(.+?) *$", head, flags=re.M)),
        bool(re.search(r"^// LOCATIONS *$", head, flags=re.M)),
        head,
        tail.strip() + "\n" if marks[0] == "EXPECT" else None,
    )


def update_case(case: GoldenCase, output: str) -> None:
    """Put the output of a run into the file."""
    chunks = re.split(rf"^{SPLIT}[ -]*$", case.file.read_text(), flags=re.M)
    head = chunks[case.index].partition("// EXPECT")[0].strip()
    chunks[case.index] = f"{head}\n// EXPECT\n{output.strip()}"
    case.file.write_text(f"\n{SPLIT}\n".join(c.strip() for c in chunks) + "\n")
