"""`inferc opt`: text in, text out."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from inferc.cli.main import main

DOUBLE = """func @forward(%x: f32[2]) -> (f32[2]) {
  %a = core.neg(%x) : f32[2] loc("a")
  %b = core.neg(%a) : f32[2] loc("b")
  return %a
}
"""
CLEAN = """func @forward(%x: f32[2]) -> (f32[2]) {
  %a = core.neg(%x) : f32[2]
  return %a
}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "in.ir"
    path.write_text(DOUBLE)
    return path


def test_passes_run_and_text_comes_out(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opt", str(file), "--pass", "dce", "--verify"]) == 0
    assert capsys.readouterr().out == CLEAN


def test_without_passes_it_formats(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opt", str(file), "--locations"]) == 0
    assert capsys.readouterr().out == DOUBLE


def test_output_file_and_eliminated_modules(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.ir"
    assert main(["opt", str(file), "--pass", "dce", "--locations", "-o", str(out)]) == 0
    assert out.read_text().endswith('eliminated "b" by dce: "its result is not used"\n')


def test_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(DOUBLE))
    assert main(["opt", "--pass", "dce"]) == 0
    assert capsys.readouterr().out == CLEAN


def test_kernels_are_selected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The one pass that the compiler takes from codegen; it is listed with the others."""
    assert main(["opt", "--list"]) == 0
    assert "select-kernels{target = " in capsys.readouterr().out
    group = """func @prefill(%x: f32[T, 8]) -> (f32[T, 8]) where T in 1..64 {
  %y = fuse.group(%x = %x) {kind = "elementwise"} : f32[T, 8] {
    %z = core.neg(%x) : f32[T, 8]
    yield %z
  }
  return %y
}
"""
    path = tmp_path / "fused.ir"
    path.write_text(group)
    assert main(["opt", str(path), "--pass", "select-kernels{tvm = false}"]) == 0
    assert 'kernel = "' in capsys.readouterr().out


def test_fuel(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opt", str(file), "--pass", "dce", "--fuel", "0"]) == 0
    assert "%b" in capsys.readouterr().out


def test_statistics_and_dump(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = tmp_path / "dump"
    assert main(["opt", str(file), "--pass", "dce", "--stats", "--dump", str(dump)]) == 0
    assert "000 dce: 2 -> 1 ops, @forward" in capsys.readouterr().err
    assert (dump / "001-dce.ir").exists()


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opt", "--list"]) == 0
    out = capsys.readouterr().out
    assert "dce\n    Dead code elimination." in out
    assert "split-phases{step_tokens = 512, sequences = 64, context_tokens = none}" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{file}", "--pass", "dcee"], "There is no pass 'dcee'; did you mean dce"),
        (["{file}", "--pass", "dce", "--stage", "fused"], "core.neg may not occur at stage fused"),
        (["{file}", "--stage", "last"], "There is no stage 'last'; stages: tensor, nn, serve"),
        (["{file}", "--pass", "dce", "--check"], "there are no logits"),
        (["nowhere.ir"], "Cannot read nowhere.ir: No such file"),
        (["{bad}"], "unexpected character\n?"),
    ],
)
def test_mistakes_are_one_message(
    file: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = file.with_name("bad.ir")
    bad.write_text("?")
    filled = [a.format(file=file, bad=bad) for a in arguments]
    assert main(["opt", *filled]) != 0
    captured = capsys.readouterr()
    assert captured.err.startswith("inferc opt: ")
    assert message in captured.err
    assert captured.out == ""
