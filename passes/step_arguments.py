"""The arguments of step functions: which there may be, of what shape, in what order.

Passes add the ones that the ops they make need; code generation and runtime know them by name.
Caches and states come behind them.
"""

from __future__ import annotations

from collections.abc import Mapping

from inferc.ir.core import Func, Value
from inferc.ir.dims import Size, Symbol, sym
from inferc.ir.types import Memory, TensorType

T, R, P, L = sym("T"), sym("R"), sym("P"), sym("L")
STEP_ARGUMENTS: Mapping[str, tuple[Size, ...]] = {
    "ids": (T,),
    "positions": (T,),
    "slots": (T,),
    "sequence_starts": (R + 1,),
    "context_lengths": (R,),
    "block_tables": (R, P),
    "logit_indices": (L,),
    "state_slots": (R,),
}


def step_argument(func: Func, name: str) -> Value:
    """The argument of this name, added in its place if it is not there. At stage serve."""
    found = next((a for a in func.args if a.hint == name), None)
    if found is not None:
        return found
    order = list(STEP_ARGUMENTS)
    before = order[: order.index(name)]
    at = sum(not isinstance(a.type, Memory) and a.hint in before for a in func.args)
    value = Value(TensorType(STEP_ARGUMENTS[name], "i32"), None, at, name)
    func.args.insert(at, value)
    for i, arg in enumerate(func.args):
        arg.index = i
    rows = func.symbols["T" if "T" in func.symbols else "R"].high
    for size in STEP_ARGUMENTS[name]:
        for symbol in () if isinstance(size, int) else sorted(size.symbols()):
            func.symbols.setdefault(symbol, Symbol(symbol, 1, rows))
    return value
