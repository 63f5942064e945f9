"""All passes on quantised checkpoints: the step functions compute what the imported graph does."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferc.frontend.importer import ImportOptions, import_model
from inferc.ir.core import Func, Module
from inferc.ir.parse import parse_module
from inferc.ir.text import print_module
from inferc.passes.check import Checker
from inferc.passes.instruments import CheckFacts, Verify
from inferc.passes.manager import run_passes
from inferc.passes.pipeline import pipeline
from tests import quantised_models
from tests.frontend.captured import warm

TOLERANCE = 3e-7
CASES = [
    ("llama", "gptq-act-order"), ("llama", "gptq-orders"), ("qwen2", "int8"), ("gpt_oss", "mxfp4"),
]  # fmt: skip


def passed(family: str, method: str, folder: Path) -> tuple[Module, Module]:
    """The imported module and what the passes make of it."""
    stored, _ = quantised_models.save(family, method, folder)
    warm(stored, None, folder / "captures")
    made = import_model(stored, ImportOptions(cache_folder=folder / "captures")).module
    source = parse_module(print_module(made))
    run_passes(made, pipeline(), instruments=[Verify(), CheckFacts()])
    return source, made


def count(func: Func, name: str) -> int:
    return sum(op.name == name for group in func.ops if group.body for op in group.body.ops)


@pytest.mark.parametrize(("family", "method"), CASES)
def test_nothing_changes(family: str, method: str, tmp_path: Path) -> None:
    source, made = passed(family, method, tmp_path)
    compared = Checker(source, precision="f64").compare(made)
    assert max(c.relative_error for c in compared) < TOLERANCE


def test_projections_of_one_order_merge(tmp_path: Path) -> None:
    """q, k, v read one x in one order; so do gate and up: four orders, five products a layer."""
    _, made = passed("llama", "gptq-act-order", tmp_path)
    decode = made.funcs["decode"]
    assert count(decode, "core.take") == 2 * 4
    assert count(decode, "core.linear") == 2 * 5 + 1


def test_projections_of_other_orders_do_not(tmp_path: Path) -> None:
    _, made = passed("llama", "gptq-orders", tmp_path)
    decode = made.funcs["decode"]
    assert count(decode, "core.take") == 2 * 7
    assert count(decode, "core.linear") == 2 * 7 + 1
