"""The table of architectures: complete, generated, and still true for a sample of its rows."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from inferc.cli import support
from inferc.cli.main import main
from inferc.cli.support import as_markdown, read_records
from tests import architectures
from tools.survey import MARKDOWN
from tools.survey_stages import Examination

_SAMPLE = ("olmo", "gpt_neo", "roberta")
_SAME = ("architecture", "captures", "raises", "windows", "states")


def test_every_model_type_has_a_row() -> None:
    assert [r["model_type"] for r in read_records()] == sorted(architectures.model_types())


def test_the_page_is_made_of_the_records() -> None:
    assert MARKDOWN.read_text(encoding="utf-8") == as_markdown(read_records()), "make support"


@pytest.mark.parametrize("name", _SAMPLE)
def test_records_are_still_true(name: str) -> None:
    (known,) = (r for r in read_records() if r["model_type"] == name)
    found = json.loads(json.dumps(dataclasses.asdict(Examination(name).run())))
    assert {k: found[k] for k in _SAME} == {k: known[k] for k in _SAME}, "python -m tools.survey"


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["support", "gpt_neo"]) == 0
    text = capsys.readouterr().out
    assert "gpt_neox" in text and "llama" not in text
    assert main(["support", "no-such-model"]) == 1


def test_records_of_an_older_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / "support.json"
    old.write_text(json.dumps([{"model_type": "olmo", "captures": True}]), encoding="utf-8")
    monkeypatch.setattr(support, "RECORDS", old)
    assert main(["support"]) == 1
    assert "1 of 1 records lack some (olmo). Measure again" in capsys.readouterr().err
