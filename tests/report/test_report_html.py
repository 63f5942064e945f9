"""The page is one safe file, and its numbers are those of the terminal."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from sample_report import report

from inferc.ir.cost import Workload
from inferc.report import model
from inferc.report.html import render
from inferc.report.machines import MACHINES
from inferc.report.terminal import bytes_text, figure

NODE = shutil.which("node")


def elements(page: str) -> tuple[str, str]:
    """Contents of the data element and of the script."""
    found = re.findall(r"<script[^>]*>(.*?)</script>", page, re.DOTALL)
    assert len(found) == 2
    return found[0], found[1]


def test_one_file_that_names_cannot_break() -> None:
    page = render(report())
    data, script = elements(page)
    assert json.loads(data) == report()
    assert "<" not in data and "<!--" not in page
    assert not re.search(r"""(src|href)\s*=|@import|url\(|fetch\(|https?://""", page)
    assert "</script>" not in html.unescape(script)


def show(tmp_path: Path, **settings: object) -> dict[str, Any]:
    assert NODE is not None
    data, script = elements(render(report()))
    (tmp_path / "data.json").write_text(data)
    (tmp_path / "script.js").write_text(script)
    command = [
        NODE, Path(__file__).with_name("page.js"), tmp_path / "script.js", tmp_path / "data.json",
        *(f"{name}={value}" for name, value in settings.items()),
    ]  # fmt: skip
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    shown: dict[str, Any] = json.loads(result.stdout)
    return shown


@pytest.mark.skipif(NODE is None, reason="needs node to run the page's script")
@pytest.mark.parametrize("phase", ["decode", "prefill"])
@pytest.mark.parametrize(("sequences", "context"), [(1, 10), (3, 100)])
def test_numbers_are_those_of_the_terminal(
    tmp_path: Path, phase: str, sequences: int, context: int
) -> None:
    rows = sequences if phase == "decode" else 48
    page = show(tmp_path, phase=phase, seqs=sequences, tokens=48, context=context, machine="h100")[
        "shown"
    ]
    workload = Workload(rows, sequences, max(context, rows // sequences), page_tokens=8)
    result = model.phase(report(), phase, workload, MACHINES["h100"])
    total = re.sub(r"<[^>]+>", "", page["total"])
    assert total.startswith(
        f"{figure(result.flops / 1e6)} MFLOP, {bytes_text(result.bytes_moved)} moved,"
        f" {bytes_text(result.must_move_bytes)} must move: traffic ratio"
        f" {result.traffic_ratio:.3f}. Predicted {result.predicted_us:.0f} µs"
    )
    body = re.sub(r"<pre>.*?</pre>", "", page["kernels"], flags=re.DOTALL)
    titles = re.findall(r'class="block"><td colspan="8">(.*?)</td>', body)
    assert titles == [block.title.replace("(x", "(\u00d7") for block in result.blocks]
    cells = re.findall(r'class="kernel">(.*?)</tr>', body)
    shown = [re.sub(r"<[^>]+>", "|", row).strip("|").split("|") for row in cells]
    expected = [
        [k.name, k.module_names, figure(k.flops / 1e6), bytes_text(k.bytes_moved)]
        for block in result.blocks
        for k in block.kernels
    ]
    assert [row[:4] for row in shown] == expected
    bounds = [k.bound for block in result.blocks for k in block.kernels]
    assert [row[5] for row in shown] == bounds


@pytest.mark.skipif(NODE is None, reason="needs node to run the page's script")
def test_what_the_page_begins_with(tmp_path: Path) -> None:
    page = show(tmp_path)
    assert page["phase"] == "decode"
    assert page["max"] == {"seqs": 8, "tokens": 64, "context": 128}
    assert "scratch of 8 threads" in page["shown"]["memory"]
    assert "20 KB" in page["shown"]["memory"] and "1 MB" in page["shown"]["memory"]
    assert "2.05 KB" in page["shown"]["passes"] and "too large (\u00d72)" in page["shown"]["passes"]
