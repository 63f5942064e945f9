"""Position biases of attention, found by evaluating them: a slope for each head (ALiBi).

A bias that is linear in the position of the key, with one slope a head, is `slope * (key - query)`
but for a number that is the same for all keys of a query, which the softmax takes out. However a
model writes it, its values show it. (arXiv 2108.12409)
"""

from __future__ import annotations

import numpy as np

from inferc.ir.core import Func, Value
from inferc.ir.interp import InterpretError, run
from inferc.ir.rewrite import outline
from inferc.passes.mask_values import Unreadable, computation

_LENGTHS = (300, 17, 2)  # whole sequences that every bias is evaluated for
_RELATIVE_ERROR_MAX = 2e-6  # products of slopes and positions are rounded to float32
Slopes = tuple[float, ...]


def slopes_of(func: Func, bias: Value, heads: int, high_tokens: int) -> Slopes:
    """The slope of each head. Raises Unreadable."""
    found = None
    for tokens in _LENGTHS:
        count = min(tokens, high_tokens)
        if count < 2:
            continue
        values = _evaluate(func, bias, count)
        if values.ndim > 4 or values.shape[-1] != count:
            raise Unreadable("a bias that does not depend on the key")
        values = np.broadcast_to(
            values, (1, heads, *np.broadcast_shapes(values.shape, (1, 1))[-2:])
        )
        slopes = _linear(values[0], count)
        if found is not None and not np.allclose(slopes, found, rtol=1e-5, atol=1e-9):
            raise Unreadable("a bias that depends on the length of the sequence")
        found = slopes if found is None else found
    if found is None:
        raise Unreadable("a bias of a single position")
    return tuple(float(s) for s in found)


def _linear(values: np.ndarray, count: int) -> np.ndarray:
    """Slopes [H] of values [H, Q, K] that are linear in the key for every query."""
    if not np.isfinite(values).all():
        raise Unreadable("the mask adds numbers to the scores that are no slopes")
    steps = (values[..., -1] - values[..., 0]) / (count - 1)  # [H, Q]
    line = values[..., :1] + steps[..., None] * np.arange(count)
    scale = np.abs(values).max() + np.abs(steps).max() * count
    if np.abs(values - line).max() > _RELATIVE_ERROR_MAX * scale:
        raise Unreadable("the mask adds numbers to the scores that are no slopes")
    if np.abs(steps - steps[:, :1]).max() > _RELATIVE_ERROR_MAX * scale:
        raise Unreadable("the slopes of a bias depend on the query")
    return steps[:, 0]


def _evaluate(func: Func, bias: Value, tokens: int) -> np.ndarray:
    """The bias for one sequence, in float64: [.., Q or 1, K]."""
    operands, body = outline(computation(func, bias), [bias], func.symbols)
    positions = np.arange(tokens, dtype=np.int64)[None]
    inputs = [positions for _ in operands]
    try:
        (array,) = run(body, inputs, precision="f64", bindings={"B": 1, "S": tokens, "T": tokens})
    except InterpretError as error:
        raise Unreadable(f"the bias cannot be evaluated: {error}") from error
    return np.asarray(array, np.float64)
