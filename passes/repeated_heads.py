"""Finds the heads that were repeated for groups of queries, whatever moves made the copies.

The moves are applied to an array of element numbers; that shows which head each copy came from.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

import numpy as np

from inferc.ir.core import Func, Op, Value
from inferc.ir.dims import Size, evaluate, product
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


def before_repeat(func: Func, value: Value) -> Source | None:
    """Where the heads of a value `[B, S, H, D]` came from, if they are copies."""
    ops = _moves(value)
    shape = tensor(value).shape
    heads = shape[2]
    if not ops or not isinstance(heads, int):
        return None
    base = ops[0].operands[0]
    elements, whole = tensor(base).elements, product(shape)
    groups = next((g for g in range(1, heads) if elements * (heads // g) == whole
                   and heads % g == 0), None)  # fmt: skip
    if groups is None:
        return None
    wanted = (*shape[:2], groups, shape[3])
    found = _perm(func, ops, base, value, wanted, heads // groups)
    return None if found is None else Source(base, found, wanted, tuple(ops))


def _moves(value: Value) -> list[Op]:
    """The moves that end in a value, from the first that repeats."""
    ops: list[Op] = []
    while (op := made_by(value, *_MOVES)) is not None:
        ops.insert(0, op)
        value = op.operands[0]
    while ops and ops[0].name != "core.broadcast_to":
        ops.pop(0)
    return ops


def _perm(
    func: Func, ops: list[Op], base: Value, value: Value, wanted: tuple[Size, ...], copies: int
) -> tuple[int, ...] | None:
    shape = tensor(base).shape
    lengths = {name: _LENGTHS.get(name, 2) for name in func.symbols}
    concrete = [_size(s, lengths) for s in shape]
    numbers = np.arange(np.prod(concrete)).reshape(concrete)
    operands, body = outline(ops, [value], func.symbols)
    if len(operands) != 1:
        return None
    (moved,) = run(body, [numbers], bindings=lengths)
    for perm in permutations(range(len(shape))):
        kept = tuple(shape[p] for p in perm if shape[p] != 1)
        if not same_shape(kept, tuple(s for s in wanted if s != 1)):
            continue
        heads = numbers.transpose(perm).reshape([_size(s, lengths) for s in wanted])
        if np.array_equal(np.repeat(heads, copies, 2), moved):
            return perm
    return None


def _size(size: Size, lengths: dict[str, int]) -> int:
    return evaluate(size, lengths)
