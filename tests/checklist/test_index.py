"""Every line of the checklist has its tests, and every test that it names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
LINES = range(1, 17)
_ROW = re.compile(r"^\| (?P<item>[^|]+) \| (?P<outcome>[^|]+) \| `(?P<test>[^`]+)`.* \|$")


@cache
def sections() -> dict[int, list[re.Match[str]]]:
    """The rows of each line, by its number."""
    found: dict[int, list[re.Match[str]]] = {}
    number = 0
    for text in (HERE / "checklist.md").read_text(encoding="utf-8").splitlines():
        heading = re.match(r"## (\d+)\. ", text)
        if heading:
            number = int(heading[1])
            found[number] = []
        elif text.startswith("| ") and not text.startswith("| item"):
            row = _ROW.match(text)
            assert row is not None, f"not an item, an outcome and a test: {text}"
            found[number].append(row)
    return found


@cache
def functions(file: str) -> frozenset[str]:
    """Names of the test functions of a file."""
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return frozenset(n.name for n in tree.body if isinstance(n, ast.FunctionDef))


def test_all_lines_are_there() -> None:
    assert list(sections()) == list(LINES)


@pytest.mark.parametrize("line", LINES)
def test_line_has_its_tests(line: int) -> None:
    rows = sections()[line]
    assert rows, f"line {line} has no test"
    for row in rows:
        file, _, name = row["test"].partition("::")
        assert (TESTS / file).is_file(), f"line {line}, {row['item']}: there is no {file}"
        assert name in functions(file), f"line {line}, {row['item']}: {file} has no {name}"


def test_an_item_without_a_test_is_seen() -> None:
    assert _ROW.match("| a | refused | `x.py::test_y` |")
    assert not _ROW.match("| a | refused | |")
    assert not _ROW.match("| a | refused | later |")


def test_every_test_of_this_folder_is_listed() -> None:
    named = {row["test"] for rows in sections().values() for row in rows}
    files = [f for f in sorted(HERE.glob("test_*.py")) if f.name != Path(__file__).name]
    here = {f"checklist/{f.name}::{n}" for f in files for n in functions(f"checklist/{f.name}")}
    unlisted = sorted(t for t in here - named if "::test_" in t)
    assert unlisted == []
