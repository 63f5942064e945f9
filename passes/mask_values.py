"""What a mask does, found by evaluating it: causal, causal within a window, or something else.

Models and exporters write masks in ever new ways, but a mask is a function of positions alone. So
its computation is cut out of the graph and interpreted, for whole sequences and, where it works
position by position, for far apart positions around every number that occurs in it. A computation
that reads tokens or weights is no mask that could be known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from inferc.ir.core import Func, Op, Value
from inferc.ir.dims import Dim
from inferc.ir.interp import InterpretError, run
from inferc.ir.ops.attention import causal_mask
from inferc.ir.ops.elementwise import ELEMENTWISE
from inferc.ir.rewrite import outline
from inferc.passes.match import tensor

HIDDEN = -1e4  # an additive mask at or below this hides a key
_DENSE_TOKENS = (40, 7)  # whole sequences that every mask is evaluated for
_DENSE_TOKENS_MAX = 3000  # longest whole sequence, for masks that count along the sequence
_POINTWISE = ELEMENTWISE | {
    "core.constant", "core.iota", "core.reshape", "core.transpose", "core.broadcast_to", "nn.mask",
}  # fmt: skip


@dataclass(frozen=True)
class MaskKind:
    """Which keys are seen: all, or the causal ones, of a window if there is one."""

    causal: bool
    window: int | None = None


class Unreadable(Exception):
    """The mask is not of a known kind; the text says why."""


@dataclass(frozen=True)
class MaskPart:
    """A part of a mask: a bool value that is true (or false) where a key is seen, or a sum."""

    value: Value
    hides: bool = False


def position_values(func: Func) -> frozenset[Value]:
    """Values that depend on positions and constants only."""
    found: set[Value] = set(func.args[1:2])
    for op in func.ops:
        source = op.name in ("core.constant", "core.iota")
        if source or (op.operands and all(v in found for v in op.operands)):
            found.update(op.results)
    return frozenset(found)


def classify(func: Func, parts: Iterable[MaskPart], high_tokens: int) -> MaskKind:
    """The kind of all parts together. Raises Unreadable."""
    masks = [_Mask(func, part) for part in parts]
    numbers = sorted({n for mask in masks for n in mask.numbers})
    found = _dense(masks, min(_DENSE_TOKENS[0], high_tokens), numbers)
    for tokens in _DENSE_TOKENS[1:]:
        _expect(masks, np.arange(min(tokens, high_tokens)), found)
    if high_tokens <= _DENSE_TOKENS[0]:
        return found
    if all(mask.pointwise for mask in masks):
        return _sparse(masks, found, numbers, high_tokens)
    return _long(masks, found, numbers, high_tokens)


def _dense(masks: list[_Mask], tokens: int, numbers: list[int]) -> MaskKind:
    positions = np.arange(tokens)
    seen = _seen(masks, positions)
    kinds = [MaskKind(True), MaskKind(False), *(MaskKind(True, w) for w in range(1, tokens))]
    for kind in kinds:
        if np.array_equal(seen, _matrix(kind, positions)):
            return kind
    raise Unreadable("the mask is neither causal nor a causal window")


def _sparse(masks: list[_Mask], found: MaskKind, numbers: list[int], high_tokens: int) -> MaskKind:
    """Look at positions around every number of the computation, and at the last ones."""
    near = {0, 1, 2, 3, high_tokens - 1, high_tokens - 2, high_tokens // 2}
    for number in numbers:
        near.update(number + d for d in range(-2, 3))
        near.update(high_tokens - 1 - number + d for d in range(-2, 3))
    positions = np.array(sorted(p for p in near if 0 <= p < high_tokens))
    windows = sorted({n + d for n in numbers for d in (-1, 0, 1) if n + d > 0})
    kinds = [found, *(MaskKind(True, w) for w in windows if found == MaskKind(True))]
    seen = _seen(masks, positions)
    for kind in kinds:
        if np.array_equal(seen, _matrix(kind, positions)):
            return kind
    raise Unreadable("the mask is neither causal nor a causal window for far positions")


def _long(masks: list[_Mask], found: MaskKind, numbers: list[int], high_tokens: int) -> MaskKind:
    """Whole sequences past every number of the computation."""
    relevant = [n for n in numbers if _DENSE_TOKENS[0] <= n < high_tokens]
    if not relevant:
        return found
    if max(relevant) + 3 > _DENSE_TOKENS_MAX:
        raise Unreadable(f"the mask may change at {max(relevant)} tokens, too far to evaluate")
    positions = np.arange(min(max(relevant) + 3, high_tokens))
    seen = _seen(masks, positions)
    windows = sorted({n + d for n in relevant for d in (-1, 0, 1)})
    for kind in (found, *(MaskKind(True, w) for w in windows if found == MaskKind(True))):
        if np.array_equal(seen, _matrix(kind, positions)):
            return kind
    raise Unreadable("the mask is neither causal nor a causal window in long sequences")


def _expect(masks: list[_Mask], positions: np.ndarray, kind: MaskKind) -> None:
    if not np.array_equal(_seen(masks, positions), _matrix(kind, positions)):
        raise Unreadable("the mask depends on the length of the sequence")


def _seen(masks: list[_Mask], positions: np.ndarray) -> np.ndarray:
    whole = np.ones((len(positions), len(positions)), bool)
    for mask in masks:
        whole &= mask.seen(positions)
    return whole


def _matrix(kind: MaskKind, positions: np.ndarray) -> np.ndarray:
    if not kind.causal:
        return np.ones((len(positions), len(positions)), bool)
    return causal_mask(positions, positions, kind.window, None)


class _Mask:
    """One part, cut out of the function."""

    def __init__(self, func: Func, part: MaskPart) -> None:
        self.part = part
        ops = computation(func, part.value)
        self.pointwise = all(op.name in _POINTWISE for op in ops)
        self.numbers = {abs(n) for op in ops for n in _numbers(op)}
        counts = [op for op in ops if op.name == "core.iota" and isinstance(op.attrs["size"], Dim)]
        if self.pointwise:  # counts are positions, and may then be any
            ops = [op for op in ops if op not in counts]
        operands, self.body = outline(ops, [part.value], func.symbols)
        self.is_count = [v.producer in counts for v in operands]

    def seen(self, positions: np.ndarray) -> np.ndarray:
        """Which keys (columns) a query (row) sees, for the tokens at these positions."""
        inputs = [positions if count else positions[None] for count in self.is_count]
        inputs = [i.astype(np.int64) for i in inputs]
        tokens = len(positions)
        try:
            (array,) = run(self.body, inputs, bindings={"B": 1, "S": tokens, "T": tokens})
        except InterpretError as error:
            raise Unreadable(f"the mask cannot be evaluated: {error}") from error
        return self._bool(np.asarray(array), tokens)

    def _bool(self, array: np.ndarray, tokens: int) -> np.ndarray:
        if array.dtype != bool:
            seen = array > HIDDEN
            if np.isnan(array).any() or (array[seen] != 0).any():
                raise Unreadable("the mask adds numbers to the scores that are not zero")
            array = seen
        elif self.part.hides:
            array = ~array
        array = array.reshape((1,) * (4 - array.ndim) + array.shape)
        if not (array == array[:1, :1]).all():
            raise Unreadable("heads have masks of their own")
        return np.broadcast_to(array[0, 0], (tokens, tokens))


def computation(func: Func, value: Value) -> list[Op]:
    """The ops that the value is computed by, in order. Raises Unreadable at tokens or weights."""
    wanted, found = {value}, list[Op]()
    for op in reversed(func.ops):
        if not wanted.intersection(op.results):
            continue
        if op.name == "param":
            raise Unreadable(f"the mask depends on the parameter {op.attrs['name']}")
        found.append(op)
        wanted.update(op.operands)
    if func.args and func.args[0] in wanted:
        raise Unreadable("the mask depends on the tokens")
    return found[::-1]


def _numbers(op: Op) -> Iterable[int]:
    """Whole numbers that a mask may compare distances with."""
    if op.name == "core.constant":
        values = op.attrs["values"]
        assert isinstance(values, tuple)
        if len(values) > 1:  # a table: looked at to its end
            yield max(size for size in tensor(op.result).shape if isinstance(size, int))
        elif len(values) == 1 and isinstance(values[0], int | float):
            number = float(values[0])
            if number == int(number if abs(number) < 1e9 else 0) and abs(number) < 1e9:
                yield int(number)
    for name in ("window", "chunk"):
        value = op.attrs.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            yield value
