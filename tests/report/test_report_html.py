"""The page is one safe file, and its numbers are those of the terminal."""

from __future__ import annotations

import base64
import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from sample_report import report

from inferc import report_file
from inferc.ir.cost import Workload
from inferc.report import model
from inferc.report.html import render
from inferc.report.machines import MACHINES, uniform
from inferc.report.terminal import bytes_text, figure

NODE = shutil.which("node")


def elements(page: str) -> tuple[str, str]:
    """Contents of the data element and of the script."""
    found = re.findall(r"<script[^>]*>(.*?)</script>", page, re.DOTALL)
    assert len(found) == 2
    return found[0], found[1]


def test_one_file_that_names_cannot_break() -> None:
    page = render(report() | {"stages": {"nn": "func @step"}})  # which the page does not show
    data, script = elements(page)
    assert base64.b64decode(data, validate=True) == report_file.encode(report())
    assert "<!--" not in page and page.count(data) == 1
    rest = page.replace(data, "")
    assert not re.search(r"""(src|href)\s*=|@import|url\(|fetch\(|https?://""", rest)
    assert "</script>" not in html.unescape(script)


def show(tmp_path: Path, profile: Any = None, **settings: object) -> dict[str, Any]:
    assert NODE is not None
    data, script = elements(render(report(), profile))
    (tmp_path / "data.txt").write_text(data)
    (tmp_path / "script.mjs").write_text(script)
    command = [
        NODE, Path(__file__).with_name("page.js"), tmp_path / "script.mjs", tmp_path / "data.txt",
        *(f"{name}={value}" for name, value in settings.items()),
    ]  # fmt: skip
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    shown: dict[str, Any] = json.loads(result.stdout)
    assert shown["unpacked"]
    return shown


def test_a_browser_without_gzip_is_told() -> None:
    """The script hides the message when it is done, so that it stays where it is not."""
    page = render(report())
    message = re.findall(r'<p id="unpacking">(.*?)</p>', page)
    assert len(message) == 1 and "too old" in message[0] and "inferc inspect" in message[0]
    assert elements(page)[1].rstrip().endswith('$("unpacking").hidden = true;')


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
    titles = re.findall(r'class="block"><td colspan="9">(.*?)</td>', body)
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


def saved_profile() -> dict[str, Any]:
    """A profile of the sample's decode phase: call i took i + 0.5 microseconds."""
    calls = [{"elapsed_us": i + 0.5} for i in range(13)]
    entry = {
        "phase": "decode", "tokens": 3, "sequences": 3, "context_tokens": 40, "workers": 2,
        "steps": 7, "step_us": 120.0, "library_us": 100.0, "read_gb_per_second": 10.0,
        "gflops_per_second": 50.0, "integer_gops_per_second": {"int16": 2.0}, "calls": calls,
    }  # fmt: skip
    return {"profiles": [entry]}


@pytest.mark.skipif(NODE is None, reason="needs node to run the page's script")
def test_measured_times_stand_beside_predicted_ones(tmp_path: Path) -> None:
    name = "1: decode, 3 rows, 3 sequences, context 40"
    shown = show(tmp_path, saved_profile(), measured=name)["shown"]
    assert "Measured <b>120 µs</b> a step, 100 µs of it in the library" in shown["total"]
    machine = uniform("here", 10e9, 50e9, {"int16": 2e9})
    result = model.phase(report(), "decode", Workload(3, 3, 40, page_tokens=8), machine)
    assert f"Predicted {result.predicted_us:.0f} µs" in shown["total"]
    body = re.sub(r"<pre>.*?</pre>", "", shown["kernels"], flags=re.DOTALL)
    cells = re.findall(r'class="kernel">(.*?)</tr>', body)
    rows = [re.sub(r"<[^>]+>", "|", row).strip("|").split("|") for row in cells]
    # Two equal layers are one block with means; then a layer with a window, one without, the head.
    expected = [2.0, 3.0, 4.0, *(i + 0.5 for i in range(6, 13))]
    assert [row[7] for row in rows] == [f"{us:.1f} µs" for us in expected]


@pytest.mark.skipif(NODE is None, reason="needs node to run the page's script")
def test_measured_times_are_not_shown_for_another_workload(tmp_path: Path) -> None:
    shown = show(tmp_path, saved_profile(), seqs=2, context=40)["shown"]
    assert "Measured" not in shown["total"]
    plain = show(tmp_path)["shown"]
    assert "Measured" not in plain["total"] and "µs<td" in plain["kernels"]
