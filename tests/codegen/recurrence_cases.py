"""What tests of recurrent kernels share: a core with sizes and inputs, ragged batches, float64."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from inferc.ir.ops.recurrent import SERVED, Recurrence

SLOTS = 5


@dataclass(frozen=True)
class RecurrenceCase:
    """A core with its sizes and attributes, with or without its optional weights."""

    core: str
    sizes: dict[str, int]
    attrs: dict[str, Any] = field(default_factory=dict)
    bias: bool = False

    @property
    def recurrence(self) -> Recurrence:
        return SERVED[f"serve.{self.core}"]

    def shape(self, axes: tuple[str, ...]) -> tuple[int, ...]:
        parts = [axis.partition(" - ") for axis in axes]
        return tuple(self.sizes[name] - int(less or 0) for name, _, less in parts)

    def weights(self) -> list[tuple[str, tuple[str, ...]]]:
        return [(n, axes) for n, axes in self.recurrence.weights if self.bias or n[-1] != "?"]

    def inputs(self, tokens: int, seed: int = 0) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Operands with rows, and weights. Decays are negative, gates and steps below one."""
        rng = np.random.default_rng(seed)

        def values(name: str, shape: tuple[int, ...]) -> np.ndarray:
            normal = rng.standard_normal(shape) * 0.5
            if name in ("a", "g"):
                normal = -np.abs(normal)
            if name in ("dt", "beta", "gate"):
                normal = 1 / (1 + np.exp(-normal))
            return normal.astype(np.float32)

        rows = [values(n, (tokens, *self.shape(axes))) for n, axes in self.recurrence.rows]
        return rows, [values(n, self.shape(axes)) for n, axes in self.weights()]

    def states(self, seed: int = 1) -> np.ndarray:
        shape = (SLOTS, *self.shape(self.recurrence.state))
        return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@dataclass(frozen=True)
class Sequences:
    """A ragged batch: how many tokens each sequence has, at which position it begins, its slot."""

    lengths: tuple[int, ...]
    first: tuple[int, ...]
    slots: tuple[int, ...]

    @property
    def starts(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int32)

    @property
    def positions(self) -> np.ndarray:
        spans = zip(self.first, self.lengths, strict=True)
        return np.concatenate([np.arange(f, f + n) for f, n in spans]).astype(np.int32)


def wanted(
    case: RecurrenceCase, batch: Sequences, rows: list[np.ndarray], weights: list[np.ndarray],
    states: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Results and states by the reference in float64."""
    results, after = [], states.astype(np.float64)
    for r, slot in enumerate(batch.slots):
        span = slice(batch.starts[r], batch.starts[r + 1])
        if span.start == span.stop:
            continue
        before = None if batch.first[r] == 0 else after[slot]
        parts = [x[span].astype(np.float64) for x in rows]
        weights64 = [w.astype(np.float64) for w in weights]
        y, after[slot] = case.recurrence.run(before, *parts, *weights64, **case.attrs)
        results.append(y)
    return np.concatenate(results), after


def close(found: np.ndarray, reference: np.ndarray) -> bool:
    return bool(np.abs(found - reference).max() <= 3e-6 * np.abs(reference).max())
