"""The node cases that the onnx package generates, on our cards: right, or refused by name."""

from __future__ import annotations

import re
import warnings
from functools import cache
from typing import Any

import numpy as np
import pytest
from onnx.backend.test.case.node import collect_testcases

from inferc.errors import CompileError
from tests.frontend.onnx_runner import interpreted

# family -> cases that give the right numbers; the others must be refused for one of the reasons
RIGHT = {
    "attention": 93,
    "attention expanded": 93,
    "rotary_embedding": 8,
    "rotary_embedding expanded": 8,
    "rms_normalization": 19,
    "rms_normalization expanded": 19,
    "linear_attention": 14,
    "linear_attention expanded": 0,
    "causal_conv_with_state": 13,
    "causal_conv_with_state expanded": 13,
}
REFUSALS = ("uses the operator Scan ",)
_ROUNDED = re.compile("fp16|bf16|float16")


@cache
def families() -> dict[str, list[Any]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    found: dict[str, list[Any]] = {name: [] for name in RIGHT}
    for case in cases:
        for name in RIGHT:
            family, _, expanded = name.partition(" ")
            if case.name.startswith(f"test_{family}") and ("_expanded" in case.name) == bool(
                expanded
            ):
                found[name].append(case)
    return found


@pytest.mark.parametrize("family", RIGHT)
def test_cases_are_right_or_refused(family: str) -> None:
    right = 0
    for case in families()[family]:
        try:
            _check(case)
        except CompileError as error:
            assert any(reason in str(error) for reason in REFUSALS), f"{case.name}: {error}"
        else:
            right += 1
    assert right == RIGHT[family]


def _check(case: Any) -> None:
    tolerance = 8e-3 if _ROUNDED.search(case.name) else 1e-4
    for inputs, outputs in case.data_sets:
        found = interpreted(case.model, [np.asarray(i) for i in inputs])
        for ours, theirs in zip(found, outputs, strict=True):
            wanted = np.asarray(theirs).astype(np.float32)
            np.testing.assert_allclose(ours, wanted, 2e-2, tolerance, err_msg=case.name)
