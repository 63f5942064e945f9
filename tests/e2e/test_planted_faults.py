"""Every fault that a compiler might silently have is caught by `inferc verify`."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferc.verify import verify
from tests.e2e.faults import FAULTS, REAL, compile_with
from tests.e2e.workshop import Workshop
from tests.models import smollm2_gguf

pytestmark = pytest.mark.usefixtures("references")
TOKENS = 75  # past the windows, over three pages


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault(
    fault: str, workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = FAULTS[fault].model
    source = smollm2_gguf() if model == REAL else workshop.source(model)
    artifact = compile_with(fault, source, tmp_path / "faulty", monkeypatch, kv_dtype="f32")
    result = verify(artifact, source, tokens=TOKENS, store=False)
    assert not result.passed
    # Wrong in the same way however it is computed: nothing but the reference could tell.
    assert result.bit_equal
    assert min(way.distance.relative_error_max for way in result.ways) > 100 * result.tolerance.max
