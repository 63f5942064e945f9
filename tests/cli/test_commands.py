"""Wrong input gets one paragraph and the right exit code, wherever the streams lead."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from runtime_artifacts import fill_toy

from inferc.cli.main import COMMANDS, main
from inferc.runtime.artifact_writer import write_artifact

SMALL = ["--prompt-tokens", "4", "--new-tokens", "3", "--runs", "1", "--concurrency"]


def refused(capsys: pytest.CaptureFixture[str], code: int, *argv: object) -> str:
    """The one paragraph on stderr; argparse leaves by SystemExit and prints its usage first."""
    try:
        found = main([str(a) for a in argv])
    except SystemExit as end:
        found = end.code
    text = capsys.readouterr().err
    assert found == code and "Traceback" not in text
    return text


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0 and "usage:" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv",
    [
        "run A hi --threads {}", "run A hi --kv-mib {}", "bench A --runs {}",
        "bench A --threads {}", "tune A --rounds {}", "tune A --prompt-tokens {}",
        "bench A --prompt-tokens {}", "bench A --new-tokens {}", "bench A --concurrency {}",
        "bench A --concurrency 1,{}", "inspect A --sequences {}", "inspect A --tokens {}",
        "inspect A --context {}", "compile A --step-tokens {}", "compile A --sequences {}",
        "compile A --page-tokens {}", "compile A --context-tokens {}",
        "verify A S --tokens {}", "verify A S --threads {}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", ["0", "-1", "x", "1.5", ""])
def test_counts(argv: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    # `=` because argparse takes `-1` after a blank for an option.
    *words, option, template = argv.split()
    text = refused(capsys, 2, *words, f"{option}={template.format(value)}")
    assert f"{option}: expected a whole number of at least 1, found '{value}'" in text


@pytest.mark.parametrize("machine", ["foo", "0,0", "nan,1", "-1,1", "1", "1,2,3", "inf,1"])
def test_machines(machine: str, capsys: pytest.CaptureFixture[str], reported: Path) -> None:
    text = refused(capsys, 1, "inspect", reported, f"--machine={machine}")
    assert "expected one of cpu2, a100, h100, h200, b200, rtx4090, or two" in text


@pytest.fixture
def reported(tmp_path: Path) -> Path:
    """A folder with nothing but a report."""
    from inferc import report_file

    sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
    from sample_report import report

    (tmp_path / report_file.REPORT_FILE).write_bytes(report_file.encode(report()))
    return tmp_path


def test_inspect(reported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(reported)]) == 0
    assert "model.layers.0 … model.layers.1 (x2)" in capsys.readouterr().out
    for option in ("--html=x.html", "--ir=nn"):
        text = refused(capsys, 1, "inspect", reported, reported, option)
        assert "show one artifact, got two" in text
    assert "No such file" in refused(
        capsys, 1, "inspect", reported, "--html", reported / "none" / "x.html"
    )
    assert "Is a directory" in refused(capsys, 1, "inspect", reported, "--html", reported)
    assert "report.json.gz: not found" in refused(capsys, 4, "inspect", reported / "report.json.gz")


def test_system_needs_roles(toy_artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = refused(capsys, 5, "run", toy_artifact, "hi", "--system", "Be brief.")
    assert "--system goes with --chat or --template" in text


def test_bench_refuses_what_would_mislead(
    toy_artifact: Path, capsys: pytest.CaptureFixture[str], reported: Path
) -> None:
    for name in ("manifest.json", "cpu", "weights", "tokenizer.json"):
        (reported / name).symlink_to(toy_artifact / name)
    bench = ["bench", reported, *SMALL]
    assert "runs at most 4 sequences at once" in refused(capsys, 5, *bench, "1,5")
    assert "expected at least 2" in refused(capsys, 5, *bench, "1", "--new-tokens", "1")
    assert "context is 64" in refused(capsys, 5, *bench, "1", "--prompt-tokens", "62")
    assert "report.json.gz: not found" in refused(capsys, 4, "bench", toy_artifact, *SMALL, "1")


def test_bench_gives_every_sequence_its_pages(
    toy_artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], reported: Path
) -> None:
    report, old = reported / "report.json.gz", tmp_path / "old.inferc"
    write_artifact(artifact := tmp_path / "toy.inferc", partial(fill_toy, abi=4))
    for folder in (artifact, shutil.copytree(toy_artifact, old)):
        shutil.copy(report, folder)
    text = refused(capsys, 1, "bench", old, *SMALL, "1")
    assert "cannot measure the machine; compile the model again" in text
    assert main(["bench", str(artifact), *SMALL, "1,4"]) == 0
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [row.split()[0] for row in rows] == ["1", "4"]


def shell(command: str, artifact: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run `inferc` in a shell; `$A` is the artifact."""
    inferc = f"'{sys.executable}' -m inferc.cli.main"
    env = {**os.environ, "A": str(artifact), **environment}
    line = command.replace("inferc", inferc)
    return subprocess.run(["bash", "-c", line], env=env, capture_output=True, timeout=600)


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (r"printf 'caf\xe9' | inferc run $A", 5, "expected UTF-8 text, found the byte 0xe9 at"),
        (r"inferc run $A $'caf\xe9'", 5, "The prompt is not valid Unicode"),
        ("head -c 999 /dev/zero | tr '\\0' '\\377' | inferc run $A", 5, "expected UTF-8"),
        (r"printf '\xff\n' | inferc run $A --chat", 5, "expected UTF-8"),
        ("inferc run $A </dev/null", 5, "the prompt from stdin is empty"),
        ("inferc run $A <&-", 5, "the prompt from stdin is empty"),
        ("inferc run $A hi >/dev/full", 1, "No space left on device"),
        ("inferc inspect $A --json >/dev/full", 4, "report.json.gz: not found"),
        ("inferc targets >/dev/full", 1, "No space left on device"),
        ("inferc run $A hi --max-tokens 3 >&-", 0, ""),
        ("set -o pipefail; inferc run $A hi --max-tokens 60 --ignore-eos | head -c 1", 0, ""),
        ("set -o pipefail; inferc doctor | head -n 1", 0, ""),
        ("printf 'hi\nyou\n' | inferc run $A --chat --max-tokens 3", 0, ""),
    ],
)
def test_streams(toy_artifact: Path, command: str, code: int, message: str) -> None:
    result = shell(command, toy_artifact)
    text = result.stderr.decode()
    assert result.returncode == code, text
    assert message in text and "Traceback" not in text and "Exception ignored" not in text
    assert (text == "") == (message == "")


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_terminals_without_unicode(toy_artifact: Path, encoding: str) -> None:
    """Text comes in as UTF-8 whatever the locale; what it cannot show comes out as `?`."""
    command = "printf 'h\\xc3\\xa9 \\xe6\\x97\\xa5' | inferc run $A --max-tokens 9 --ignore-eos"
    expected = shell(command, toy_artifact, PYTHONIOENCODING="utf-8").stdout.decode()
    result = shell(command, toy_artifact, PYTHONIOENCODING=encoding)
    assert result.returncode == 0 and result.stderr == b""
    shown = re.sub(r"[^\x00-\xff]" if encoding == "latin-1" else r"[^\x00-\x7f]", "?", expected)
    assert result.stdout.decode(encoding) == (expected if encoding == "utf-8" else shown)
