"""Runs every golden case beside this file. `pytest tests/passes --update-golden` rewrites them."""

from __future__ import annotations

from pathlib import Path

import pytest
from golden import GoldenCase, read_cases, update_case

from inferc.ir.core import Module
from inferc.ir.parse import parse_module
from inferc.ir.text import print_module
from inferc.passes.instruments import CheckFacts, Verify
from inferc.passes.manager import run_passes
from inferc.passes.registry import parse_pipeline

FILES = sorted(Path(__file__).parent.glob("*.ir"))
CASES = [case for file in FILES for case in read_cases(file)]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_golden(case: GoldenCase, request: pytest.FixtureRequest) -> None:
    module = parse_module(case.source)
    before = print_module(module, locations=case.locations)
    passes = parse_pipeline(case.run)
    given = frozenset[str]().union(*(p.requires for p in passes))
    records = run_passes(module, passes, given=given, instruments=[Verify(), CheckFacts()])
    output = print_module(module, locations=case.locations)
    expected = before if case.expected is None else case.expected
    if request.config.getoption("--update-golden") and case.expected is not None:
        if output != expected:
            update_case(case, output)
        expected = output
    assert output == expected
    _check_round_trip(module)
    if case.hits is not None:
        assert sum(sum(r.hits.values()) for r in records) == case.hits, [r.hits for r in records]
    reasons = [f"{r.pattern}: {r.reason}" for record in records for r in record.refused]
    for part in case.refused:
        assert any(part in reason for reason in reasons), (part, reasons)


def _check_round_trip(module: Module) -> None:
    text = print_module(module, locations=True)
    assert print_module(parse_module(text), locations=True) == text
