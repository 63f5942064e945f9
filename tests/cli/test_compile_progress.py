"""What `inferc compile` prints of progress events."""

import pytest

from inferc.cli.compile_model import ShownProgress
from inferc.options import Event


def test_a_line_a_stage_and_the_result_of_the_check(capsys: pytest.CaptureFixture[str]) -> None:
    with ShownProgress(quiet=False) as progress:
        for event in (Event("passes", "cse"), Event("passes", "dce"), Event("check", "1e-6")):
            progress.show(event)
    assert capsys.readouterr().err == "passes …\n"
    assert progress.check == "1e-6"
