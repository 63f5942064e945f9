"""Configurations as files spell them compute what transformers computes (lines 1, 3, 4 and 5)."""

from __future__ import annotations

import pytest

from inferc.frontend.config_checks import check_config
from tests import tiny
from tests.frontend.captured import captured, relative_error, run_forward
from tests.tiny_checklist import CHECK_CASES

LENGTH = 40  # past the windows, and past the original context of the longrope models


@pytest.mark.parametrize("name", CHECK_CASES)
def test_equals_transformers(name: str) -> None:
    """The captured graph, interpreted."""
    check_config(tiny.config(name), "config.json")
    module, _ = captured(name)
    values, ids = tiny.parameters(name), tiny.ids(name, 2, LENGTH)
    found = run_forward(module.funcs["forward"], lambda p, _: values[p], ids)
    assert relative_error(found, tiny.logits(name, ids)) < 1e-5
