"""Rotary settings as files spell them (lines 1 and 3 of the checklist)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inferc.errors import CompileError
from inferc.frontend import capture_child, capture_config
from inferc.frontend.config_checks import check_config, with_new_rope_names
from tests import tiny
from tests.frontend.captured import captured


def test_frequencies_by_layer_type_differ() -> None:
    """The two tables of a model that rotates its layers differently are both in the graph."""
    func = captured("rope of each layer type")[0].funcs["forward"]
    tables = [op for op in func.ops if op.name == "core.constant" and "inv_freq" in op.result.hint]
    first, second = (np.array(op.attrs["values"]) for op in tables)
    assert not np.allclose(first, second)


def test_old_name_of_longrope() -> None:
    """`su`, as the first Phi-3 models spell it, is the same model."""
    new = tiny.config("phi3-longrope-long")
    rope = new["rope_parameters"]
    factors = {"short_factor": rope["short_factor"], "long_factor": rope["long_factor"]}
    rest = {k: v for k, v in new.items() if k != "rope_parameters"}
    old = {**rest, "rope_theta": 10000.0, "rope_scaling": {"type": "su", **factors}}
    check_config(old, "config.json")
    built = [capture_config.build(c).rope_parameters for c in (new, with_new_rope_names(old))]
    assert built[0] == built[1]


def refusal(**fields: Any) -> str:
    with pytest.raises(CompileError) as error:
        check_config({"model_type": "llama", **fields}, "config.json")
    return str(error.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
        {"rope_parameters": {"full_attention": {"rope_type": "dynamic", "factor": 2.0}}},
    ],
)
def test_dynamic_is_refused(fields: dict[str, Any]) -> None:
    message = refusal(**fields)
    assert "'dynamic'" in message and "longest sequence of each batch" in message


@pytest.mark.parametrize("theta", [0, -1.0, "1e6", True])
def test_a_theta_that_is_no_base(theta: object) -> None:
    message = f"expected a positive number, found {theta!r}"
    assert message in refusal(rope_theta=theta)
    assert message in refusal(rope_parameters={"rope_type": "default", "rope_theta": theta})


def test_rope_by_layer_type_where_all_layers_rotate_alike() -> None:
    rope = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    with pytest.raises(CompileError, match=r"for full_attention, sliding_attention, but LlamaC"):
        capture_config.build(tiny.config("llama") | {"rope_parameters": rope})


def test_factors_of_another_number_of_dims() -> None:
    """Phi-4-mini: 64 factors for 48 rotated pairs stopped others at run time."""
    config = tiny.config("partial rotary with longrope")
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    config["rope_scaling"] = config["rope_scaling"] | factors
    with pytest.raises(Exception, match="short_factor") as error:
        capture_config.build(config)
    message = capture_child.describe(error.value)
    assert "cannot build a model from this config.json" in message
    assert "must have length 6, got 8" in message
