"""Finds the heads behind a chain of moves: repeated for groups of queries, or moved to and fro.

The moves are applied to an array of element numbers; that shows which axis, and which head, each
element came from, however the moves are spelled.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

import numpy as np

from inferc.ir.core import Func, Op, Value
from inferc.ir.dims import InconclusiveDim, Size, divide, evaluate, product
from inferc.ir.interp import run
from inferc.ir.rewrite import outline
from inferc.passes.match import made_by, same_shape, tensor

_MOVES = ("core.reshape", "core.transpose", "core.broadcast_to")
_LENGTHS = {"B": 2, "S": 3, "T": 5}


@dataclass(frozen=True)
class Source:
    """`value` transposed by `perm` and reshaped to `shape`, `[B, S, G, D]`, has the heads."""

    value: Value
    perm: tuple[int, ...]
    shape: tuple[Size, ...]
    ops: tuple[Op, ...]

    @property
    def moves(self) -> int:
        """How many moves it takes from here."""
        shape = tuple(tensor(self.value).shape[p] for p in self.perm)
        return (self.perm != tuple(range(len(self.perm)))) + (not same_shape(shape, self.shape))


def source_of_heads(func: Func, value: Value) -> Source | None:
    """The earliest value that has the heads of a value `[B, S, H, D]`, if that saves moves."""
    ops: list[Op] = []
    while (op := made_by(value if not ops else ops[0].operands[0], *_MOVES)) is not None:
        ops.insert(0, op)
    for first in range(len(ops)):
        found = _source(func, ops[first:], value)
        if found is not None and found.moves < len(found.ops):
            return found
    return None


def _source(func: Func, ops: list[Op], value: Value) -> Source | None:
    base, shape = ops[0].operands[0], tensor(value).shape
    heads = shape[2]
    try:
        groups = divide(tensor(base).elements, product((*shape[:2], shape[3])))
    except InconclusiveDim:
        return None
    if not isinstance(heads, int) or not isinstance(groups, int) or heads % groups:
        return None
    wanted = (*shape[:2], groups, shape[3])
    perm = _perm(func, ops, value, wanted, heads // groups)
    return None if perm is None else Source(base, perm, wanted, tuple(ops))


def _perm(
    func: Func, ops: list[Op], value: Value, wanted: tuple[Size, ...], copies: int
) -> tuple[int, ...] | None:
    """The order of the base's axes in which it is `wanted`, give or take unit axes."""
    operands, body = outline(ops, [value], func.symbols)
    shape = tensor(operands[0]).shape
    lengths = {name: _LENGTHS.get(name, 2) for name in func.symbols}
    axes = [p for p in range(len(shape)) if shape[p] != 1]
    unit_axes = tuple(p for p in range(len(shape)) if shape[p] == 1)
    concrete = [evaluate(s, lengths) for s in shape]
    numbers = np.arange(np.prod(concrete)).reshape(concrete)
    (moved,) = run(body, [numbers], bindings=lengths)
    target = tuple(s for s in wanted if s != 1)
    for order in permutations(axes) if len(axes) == len(target) else ():
        if not same_shape(tuple(shape[p] for p in order), target):
            continue
        perm = (*unit_axes, *order)
        heads = numbers.transpose(perm).reshape([evaluate(s, lengths) for s in wanted])
        if np.array_equal(np.repeat(heads, copies, 2), moved):
            return perm
    return None
