"""The first tokens of a causal op do not see what is behind them.

    %w = core.concat(%x, %zeros) {axis = 1} : f32[B, S + 3, C]
    %c = nn.causal_conv1d(%w, %k) : f32[B, S + 3, C]   =>   %y = nn.causal_conv1d(%x, %k)
    %y = core.slice(%c) {axis = 1, start = 0, stop = S}

A convolution that pads both ends and whose surplus is cut off is written so.
"""

from __future__ import annotations

from inferc.ir.core import Op, Value
from inferc.ir.ops.recurrent import WHOLE
from inferc.passes.driver import Edit, pattern
from inferc.passes.match import axis_attr, int_attr, made_by, same_size, size_attr, tensor

_TOKENS = 1  # axis of the tokens of all operands with rows


@pattern("core.slice")
def prefix_of_causal(op: Op, edit: Edit) -> Value | None:
    """Let a recurrent op read only the tokens whose results are read."""
    whole = made_by(op.operands[0], *WHOLE)
    if whole is None or axis_attr(op) != _TOKENS or int_attr(op, "step") != 1:
        return None
    if not same_size(size_attr(op, "start"), 0):
        return None
    count, stop = len(WHOLE[whole.name].rows), size_attr(op, "stop")
    rows = [_first_part(v) for v in whole.operands[:count]]
    if not all(r is not None and same_size(tensor(r).shape[_TOKENS], stop) for r in rows):
        return None
    edit.covers(whole)
    return edit.like(whole, *(r for r in rows if r is not None), *whole.operands[count:])


def _first_part(value: Value) -> Value | None:
    """What a value begins with along the tokens."""
    op = made_by(value, "core.concat")
    return op.operands[0] if op is not None and axis_attr(op) == _TOKENS else None


CAUSAL = (prefix_of_causal,)
