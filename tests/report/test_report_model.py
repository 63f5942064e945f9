"""The join behind all views: damage is told, formulas are evaluated, equal layers are folded."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from sample_report import report

from inferc import report_file
from inferc.errors import ArtifactError
from inferc.ir.cost import Workload
from inferc.report import compare, model, terminal
from inferc.report.machines import uniform

MACHINE = uniform("m", 1e6, 1e6)


def test_evaluation() -> None:
    # 6 new tokens for each of 2 sequences that hold 40 afterwards
    result = model.phase(report(), "prefill", Workload(12, 2, 40, page_tokens=8), MACHINE)
    norm, attend, linear = result.blocks[0].kernels
    assert (norm.flops, norm.bytes_moved) == (4 * 12, 64 * 12 + 64 + 64 * 12)
    assert (attend.flops, attend.bytes_moved) == (32 * 38 * 12, 128 * 40 * 2 + 64 * 12)
    assert linear.intensity == 2048 * 12 / (2 * 12 + 4096 + 8 * 12)
    assert result.must_move_bytes == 100000 + 4 * 5 * 2 + 128 * 34 * 2 - 3 * 12
    windowed = result.blocks[1].kernels[1]
    assert (windowed.flops, windowed.bytes_moved) == (32 * 16 * 12, 128 * 21 * 2 + 64 * 12)
    assert result.flops == sum(k.flops * len(b.paths) for b in result.blocks for k in b.kernels)
    assert result.traffic_ratio == result.bytes_moved / result.must_move_bytes


def test_predictions_take_the_larger_limit() -> None:
    workload = Workload.decode(1, 10)
    fast_memory = model.phase(report(), "decode", workload, uniform("m", 1e12, 1e3))
    fast_compute = model.phase(report(), "decode", workload, uniform("m", 1e3, 1e12))
    assert {k.bound for b in fast_memory.blocks for k in b.kernels} == {"compute"}
    assert {k.bound for b in fast_compute.blocks for k in b.kernels} == {"memory"}
    assert fast_memory.predicted_us == pytest.approx(fast_memory.flops / 1e3 * 1e6)
    assert fast_compute.predicted_us == pytest.approx(fast_compute.bytes_moved / 1e3 * 1e6)


def test_only_equal_neighbours_are_folded() -> None:
    long = model.phase(report(), "decode", Workload.decode(1, 40), MACHINE)
    assert [block.title for block in long.blocks] == [
        "model.layers.0 … model.layers.1 (x2)", "model.layers.2", "model.layers.3", "lm_head",
    ]  # fmt: skip
    # Within the window all layers cost the same.
    short = model.phase(report(), "decode", Workload.decode(1, 10), MACHINE)
    assert [len(block.paths) for block in short.blocks] == [4, 1]


def test_short_module_names() -> None:
    result = model.phase(report(), "decode", Workload.decode(1, 10), MACHINE)
    assert [k.module_names for k in result.blocks[0].kernels] == [
        "norm", "self_attn", "o_proj layers.0",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 KB"), (999_499, "999 KB"), (999_700, "1 MB"),
     (5_900_000, "5.9 MB"), (1.234e9, "1.23 GB"), (1.5e13, "15,000 GB")],
)  # fmt: skip
def test_byte_counts(count: float, text: str) -> None:
    assert terminal.bytes_text(count) == text


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", "3", "{}", b"\xff", '{"schema_version": 1}']
)
def test_damage_is_told(tmp_path: Path, content: str | bytes) -> None:
    stored = content if isinstance(content, bytes) else content.encode()
    for name, file in (("report.json", stored), ("report.json.gz", gzip.compress(stored))):
        (tmp_path / name).write_bytes(file)
        with pytest.raises(ArtifactError, match=rf"/{name}: damaged .*compile"):
            model.load(tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: b"",
        lambda file: json.dumps(report()).encode(),
        lambda file: file[: len(file) // 2],
        lambda file: file[:-1],
        lambda file: file[:40] + bytes([file[40] ^ 1]) + file[41:],
        lambda file: file[:-8] + bytes([file[-8] ^ 1]) + file[-7:],  # the checksum
        lambda file: file + b"x",
    ],
)
def test_damage_of_the_compressed_file_is_told(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    (tmp_path / report_file.REPORT_FILE).write_bytes(damage(report_file.encode(report())))
    with pytest.raises(ArtifactError, match=r"/report\.json\.gz: damaged .*compile"):
        model.load(tmp_path)


def test_reports_of_earlier_versions_are_read(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps(report()))
    assert model.load(tmp_path) == report()


def test_the_file_holds_neither_name_nor_time() -> None:
    content = report_file.encode(report())
    assert content[3] == 0 and content[4:8] == bytes(4)  # flags, time (RFC 1952)
    assert json.loads(gzip.decompress(content)) == report()


def test_missing_and_newer(tmp_path: Path) -> None:
    path = tmp_path / "report.json.gz"
    for folder in (tmp_path, tmp_path / "none", path):
        with pytest.raises(ArtifactError, match="not found"):
            model.load(folder)
        if folder is tmp_path / "none":
            path.touch()
    path.write_bytes(report_file.encode(report() | {"schema_version": 2}))
    with pytest.raises(ArtifactError, match="schema 2 is newer than 1"):
        model.load(tmp_path)


def test_a_comparison_says_what_was_compiled_for_what() -> None:
    console = Console(width=140)
    other = report() | {"target": report()["target"] | {"name": "cuda:sm_80"}}
    workloads = {name: Workload.decode(1, 10) for name in ("decode", "prefill")}
    with console.capture() as page:
        compare.show(report(), other, workloads, MACHINE, console)
    lines = page.get().splitlines()
    assert lines[1].split() == [report()["target"]["name"], "cuda:sm_80", "ratio"]
    assert any(line.startswith(f"decode: predicted us on {MACHINE.name} ") for line in lines)


def test_views_take_any_name() -> None:
    """A model may be called after a file with brackets in its name."""
    console = Console(width=140)
    workloads = {name: Workload.decode(1, 10) for name in ("decode", "prefill")}
    with console.capture() as page:
        terminal.show(report(), MACHINE, workloads, console)
        compare.show(report(), report(), workloads, MACHINE, console)
    text = page.get()
    assert text.count("tiny [x] </script>") == 3
    assert "scratch of 8 threads" in text and "too large (x2)" in text
