"""The pattern of a kernel test: a unit under emulation beside the interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_runner import ORDERS, compile_unit

GATHER = """func @body(%x: f32[T, 37], %rows: i32[L]) -> (f32[L, 37]) where T in 1..64, L in 1..64 {
  %y = core.gather_rows(%x, %rows) : f32[L, 37]
  return %y
}
"""


@pytest.mark.parametrize("order", ORDERS)
def test_gather(order: int) -> None:
    x = np.random.default_rng(0).standard_normal((5, 37)).astype(np.float32)
    rows = np.array([4, 0, 0, 3], np.int32)
    (y,) = compile_unit(GATHER)([x, rows], 4, order=order)
    np.testing.assert_array_equal(y, x[rows])
