"""Buffers that no checkpoint holds become the formula they were computed by, or stay numbers."""

from __future__ import annotations

import numpy as np
import pytest

from inferc.frontend.aten_table import Emitter
from inferc.frontend.known_tables import table_of_positions
from inferc.ir import interp
from inferc.ir.core import Builder, Func, Value
from inferc.ir.types import TensorType


def _formula(table: np.ndarray) -> np.ndarray | None:
    """What the formula found for a table computes; None if there is none."""
    func = Func("f")
    emitter = Emitter(Builder(func), func.add_arg("positions", TensorType((1, 1), "i64")))
    found = table_of_positions(emitter, table)
    if not isinstance(found, Value):
        return None
    func.results = [found]
    return np.asarray(interp.run(func, [np.zeros((1, 1), np.int64)], {})[0])


def _sinusoids(rows: int, frequencies: np.ndarray, blank: int | None = None) -> np.ndarray:
    angle = np.arange(rows, dtype=np.float32)[:, None] * frequencies.astype(np.float32)
    table = np.concatenate([np.sin(angle), np.cos(angle)], axis=1)
    if blank is not None:
        table[blank] = 0
    return table


FREQUENCIES = {
    "rotary": 10000.0 ** -(np.arange(0, 64, 2) / 64),
    "xglm": np.exp(np.arange(32) * -(np.log(10000) / 31)),
    "fast": np.array([3.0, 1.5, 0.25]),
    "slow": np.array([1e-7, 3e-6]),
}


@pytest.mark.parametrize("name", FREQUENCIES)
@pytest.mark.parametrize("rows", [4, 600, 4096])
@pytest.mark.parametrize("blank", [None, 0, 1, 3])
def test_sines_and_cosines_of_positions(name: str, rows: int, blank: int | None) -> None:
    table = _sinusoids(rows, FREQUENCIES[name], blank)
    found = _formula(table)
    assert found is not None and found.shape == table.shape
    assert np.abs(found - table).max() < 2e-6


def test_masks() -> None:
    causal = np.tril(np.ones((1, 1, 300, 300), bool))
    assert np.array_equal(_formula(causal), causal)
    window = (causal & ~np.tril(np.ones((300, 300), bool), -8)).astype(np.float32)
    assert np.array_equal(_formula(window), window)


@pytest.mark.parametrize("change", ["scale", "one", "rows"])
def test_other_tables_have_no_formula(change: str) -> None:
    table = _sinusoids(600, FREQUENCIES["rotary"])
    if change == "scale":
        table *= np.float32(1.001)
    if change == "one":
        table[511, 3] += np.float32(1e-4)
    if change == "rows":
        table[[100, 200]] = 0
    assert _formula(table) is None
