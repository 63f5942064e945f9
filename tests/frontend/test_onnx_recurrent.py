"""Convolutions along a sequence as graphs write them, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from inferc.errors import CompileError
from tests.frontend.onnx_runner import by_runtime, interpreted, model_of

B, C, S, K = 2, 6, 9, 4
RNG = np.random.default_rng(3)
INPUTS = {"x": RNG.standard_normal((B, C, S)).astype(np.float32)}
WEIGHTS = {
    "w": RNG.standard_normal((C, 1, K)).astype(np.float32),
    "b": RNG.standard_normal(C).astype(np.float32),
}


def model(**attrs: Any) -> Any:
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], **attrs)
    return model_of([node], INPUTS, ["y"], WEIGHTS, opset=21)


@pytest.mark.parametrize("pads", [[0, 0], [K - 1, 0]])
def test_causal_convolutions(pads: list[int]) -> None:
    made = model(group=C, pads=pads)
    found = interpreted(made, list(INPUTS.values()))[0]
    np.testing.assert_allclose(found, by_runtime(made, INPUTS)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"pads": [K - 1, K - 1]}, r"pads = \[3, 3\] is not supported"),
        ({"strides": [2]}, r"strides = \[2\] is not supported"),
        ({"dilations": [2]}, r"dilations = \[2\] is not supported"),
    ],
)
def test_other_convolutions_are_refused(attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(CompileError, match=message):
        interpreted(model(group=C, **attrs), list(INPUTS.values()))
