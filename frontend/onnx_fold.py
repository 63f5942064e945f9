"""Element-wise operations on what is known at compile time: numbers, sizes, one repeated number.

Sizes may be symbolic; where they do not decide the result, it is refused, not guessed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from inferc.errors import CompileError
from inferc.frontend.onnx_table import OnnxEmitter, shape_of
from inferc.frontend.onnx_values import Filled, Item, Known, Scalar, settled
from inferc.ir.dims import Dim, InconclusiveDim
from inferc.ir.ops._shapes import broadcast

_LISTED_ELEMENTS_MAX = 4096
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_NUMPY: dict[str, Callable[..., Any]] = {
    "abs": np.abs, "neg": np.negative, "exp": np.exp, "log": np.log, "sqrt": np.sqrt,
    "tanh": np.tanh, "reciprocal": np.reciprocal, "cos": np.cos, "sin": np.sin,
    "floor": np.floor, "logical_not": np.logical_not, "add": np.add, "sub": np.subtract,
    "mul": np.multiply, "pow": np.power, "logical_and": np.logical_and,
    "logical_or": np.logical_or, "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "erf": np.vectorize(math.erf),
}  # fmt: skip


def fold(e: OnnxEmitter, core: str, dtype: str, *items: Item) -> Item | None:
    """The result where it can be known: arrays, or one number everywhere."""
    if any(isinstance(i, Known) and not is_single(i) for i in items):
        items = tuple(map(listed, items))
    if all(isinstance(i, Known) for i in items):
        return settled(_computed(e, core, dtype, *(i.array for i in items)), dtype)  # type: ignore[union-attr]
    if not all(isinstance(i, Filled) or is_single(i) for i in items):
        return None
    numbers = [np.array(number_of(i), object) for i in items]
    value = _computed(e, core, dtype, *numbers)
    shape = broadcast(core, *(shape_of(i) for i in items))
    return Filled(settled(value, dtype).elements()[0], shape, dtype)


def listed(item: Item) -> Item:
    """One repeated number as a known array, where it is not many times repeated."""
    if not isinstance(item, Filled) or not all(isinstance(s, int) for s in item.shape):
        return item
    shape = tuple(s for s in item.shape if isinstance(s, int))
    if math.prod(shape) > _LISTED_ELEMENTS_MAX:
        return item
    array = np.empty(shape, object)
    array[...] = item.value
    return settled(array, item.dtype)


def is_single(item: Item) -> bool:
    """Whether an item is a known array of one element."""
    return isinstance(item, Known) and item.array.size == 1


def number_of(item: Item) -> Scalar:
    """The number of an item that repeats one, or the first of a known array."""
    assert isinstance(item, Known | Filled)
    return item.value if isinstance(item, Filled) else item.elements()[0]


def _computed(e: OnnxEmitter, core: str, dtype: str, *arrays: np.ndarray) -> np.ndarray:
    """Element-wise on numbers and sizes. Raises CompileError where sizes do not decide."""
    symbolic = any(a.dtype == object for a in arrays)
    if not symbolic and core in _NUMPY:
        return np.asarray(_NUMPY[core](*arrays))
    decide = np.vectorize(lambda *xs: _decided(e, core, dtype, *xs), otypes=[object])
    return np.asarray(decide(*arrays), object)


def _decided(e: OnnxEmitter, core: str, dtype: str, *xs: Any) -> Any:
    xs = tuple(x if isinstance(x, Dim) else getattr(x, "item", lambda x=x: x)() for x in xs)
    if core in COMPARISONS or core in ("maximum", "minimum"):
        return _compared(e, core, *xs)
    if core == "div":
        return _quotient(dtype, *xs)
    if not any(isinstance(x, Dim) for x in xs):
        return _NUMPY[core](*xs)
    operations: dict[str, Callable[..., Any]] = {
        "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": _times,
        "neg": lambda a: -a, "abs": lambda a: a, "floor": lambda a: a,
    }  # fmt: skip
    if core not in operations:
        raise CompileError(f"{core} of the size {', '.join(map(str, xs))} is not known.")
    return operations[core](*xs)


def _times(a: Any, b: Any) -> Any:
    if isinstance(a, float) or isinstance(b, float):
        whole = [int(x) if isinstance(x, float) and x == int(x) else x for x in (a, b)]
        if any(isinstance(x, float) for x in whole):
            raise CompileError(f"the size {a} * {b} is not known to be a whole number.")
        a, b = whole
    return a * b


def _quotient(dtype: str, a: Any, b: Any) -> Any:
    if not isinstance(a, Dim) and not isinstance(b, Dim):
        return a / b if dtype.startswith(("f", "bf")) else math.trunc(a / b)
    try:
        return a // (int(b) if isinstance(b, float) and b == int(b) else b)
    except InconclusiveDim as error:
        raise CompileError(f"{error}.") from error


def _compared(e: OnnxEmitter, core: str, a: Any, b: Any) -> Any:
    if not isinstance(a, Dim) and not isinstance(b, Dim):
        functions: dict[str, Callable[[Any, Any], Any]] = {
            "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b,
            "ge": lambda a, b: a >= b, "eq": lambda a, b: a == b, "ne": lambda a, b: a != b,
            "maximum": max, "minimum": min,
        }  # fmt: skip
        return functions[core](a, b)
    le, ge = e.le(a, b), e.le(b, a)
    known = {"eq": e.eq(a, b), "ne": _not(e.eq(a, b)), "le": le, "ge": ge, "lt": _not(ge),
             "gt": _not(le)}  # fmt: skip
    if core in known and known[core] is not None:
        return known[core]
    if core in ("maximum", "minimum"):
        if le is not None:
            return b if le == (core == "maximum") else a
        if ge is not None:
            return a if ge == (core == "maximum") else b
    raise CompileError(f"whether {a} {core} {b} depends on the batch or the length.")


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value
