"""Translation check: a pass must not change what the model computes.

The reference interpreter runs the module on random parameters and small prompts, at whatever stage
it is, and the logits are compared with those of the module that came in:

    @forward [B, S]     whole prompts, as captured
    @forward [T]        flattened, one sequence at a time (or paged, all together)
    @prefill            whole prompts together; and in two chunks
    @decode             the last token, after @prefill of the others
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from inferc.errors import CompileError
from inferc.ir.core import Func, Module
from inferc.ir.interp import Params, run
from inferc.ir.ops.recurrent import WHOLE
from inferc.ir.types import Memory, TensorType, numpy_dtype
from inferc.passes.base import Pass
from inferc.passes.check_inputs import (
    Array,
    PagedBatch,
    Prompts,
    RandomParams,
    canonical_prompts,
    is_small,
)
from inferc.passes.record import PassRecord

# Legal rewrites were seen to change 2e-6 in float32 and 8e-8 in float64 (a constant that is float32
# as an op, not as an attribute). A dropped soft-cap changes 1e-4, another epsilon 1e-6: float64
# finds both.
TOLERANCE = {"f32": 3e-5, "f64": 3e-7}
Logits = dict[str, list[Array]]  # phase -> rows of each sequence; "decode" has the last row only


class TranslationError(CompileError):
    """A pass changed what the model computes."""


@dataclass(frozen=True)
class Comparison:
    """Largest relative error of the logits of one phase on one set of prompts."""

    prompts: str
    phase: str
    relative_error: float


class Checker:
    """Compares modules with the one it was made from.

    In float64 if the model is small, else in float32, unless `precision` says which.
    """

    def __init__(
        self, source: Module, *, precision: str | None = None, tolerance: float | None = None
    ) -> None:
        precision = precision or ("f64" if is_small(source) else "f32")
        self.precision = precision
        self.tolerance = TOLERANCE[precision] if tolerance is None else tolerance
        self.prompts = canonical_prompts(source)
        params = RandomParams(source, precision)
        self.expected = [_whole(logits(source, p, params, precision)) for p in self.prompts]

    def compare(self, module: Module) -> list[Comparison]:
        """Errors of `module` by prompts and phase."""
        params = RandomParams(module, self.precision)
        found: list[Comparison] = []
        for prompts, expected in zip(self.prompts, self.expected, strict=True):
            for phase, rows in logits(module, prompts, params, self.precision).items():
                pairs = zip(rows, expected, strict=True)
                error = max(relative_error(r, e[-len(r) :]) for r, e in pairs)
                found.append(Comparison(prompts.name, phase, error))
        return found

    def is_good(self, module: Module) -> bool:
        """Whether all errors are within the tolerance."""
        return all(c.relative_error <= self.tolerance for c in self.compare(module))


class CheckTranslation:
    """Instrument: compares the module with the source after every pass that changed it."""

    def __init__(self, *, precision: str | None = None, tolerance: float | None = None) -> None:
        self.precision, self.tolerance = precision, tolerance
        self.results: dict[str, list[Comparison]] = {}  # by pass, as `NNN pass`
        self._checker: Checker | None = None

    def before(self, module: Module, pass_: Pass) -> None:
        """Before the first pass: compute what is expected."""
        if self._checker is None:
            self._checker = Checker(module, precision=self.precision, tolerance=self.tolerance)

    def after(self, module: Module, pass_: Pass, record: PassRecord) -> None:
        """Raise TranslationError if the logits are further off than the tolerance."""
        assert self._checker is not None
        if not record.changed:
            return
        comparisons = self._checker.compare(module)
        self.results[f"{record.index:03d} {record.name}"] = comparisons
        worst = max(comparisons, key=lambda c: c.relative_error)
        checker = self._checker
        if worst.relative_error > checker.tolerance:
            raise TranslationError(
                f"Pass {record.name} changes the result: relative error of the logits "
                f"{worst.relative_error:.2e} in {worst.phase} of {worst.prompts}, allowed "
                f"{checker.tolerance:.0e} ({checker.precision}). To find which of its "
                f"{record.rewrites} rewrites is wrong: inferc opt FILE.ir --pass "
                f"'{record.name}' --bisect"
            )

    @property
    def worst(self) -> float:
        """Largest relative error of all passes; 0 if nothing changed."""
        return max((c.relative_error for r in self.results.values() for c in r), default=0.0)


def relative_error(found: Array, expected: Array) -> float:
    """Norm of the difference over the norm of what is expected; infinite if not a number."""
    error = float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
    return error if np.isfinite(error) else float("inf")


def _whole(found: Logits) -> list[Array]:
    return found["forward"] if "forward" in found else found["prefill"]


# -- running a module at any stage
def logits(module: Module, prompts: Prompts, params: Params, precision: str = "f32") -> Logits:
    """Logits by phase and sequence. Raises CompileError if the module has no step function."""
    if "prefill" in module.funcs:
        prefill, decode = module.funcs["prefill"], module.funcs.get("decode")
        return _Paged(prefill, decode, prompts, params, precision).run()
    forward = module.funcs.get("forward")
    if forward is None:
        raise CompileError(f"There is no @forward or @prefill among {', '.join(module.funcs)}.")
    if any(isinstance(a.type, Memory) for a in forward.args):
        paged = _Paged(forward, None, prompts, params, precision)
        whole = any(op.name in (*WHOLE, "nn.attention") for op in forward.ops)
        return {"forward": paged.alone() if whole else paged.run()["prefill"]}
    return {"forward": _plain(forward, prompts, params, precision)}


def _plain(func: Func, prompts: Prompts, params: Params, precision: str) -> list[Array]:
    """Logits of a function without caches."""
    lengths = {len(ids) for ids in prompts.ids}
    ids_type = func.args[0].type
    flat = isinstance(ids_type, TensorType) and ids_type.rank == 1
    if flat:
        return [_call(func, ids, params, precision) for ids in prompts.ids]
    if len(lengths) == 1:
        return list(_call(func, np.stack(prompts.ids), params, precision))
    return [_call(func, ids[None], params, precision)[0] for ids in prompts.ids]


def _call(func: Func, ids: Array, params: Params, precision: str) -> Array:
    positions = np.broadcast_to(np.arange(ids.shape[-1]), ids.shape)
    named = {"ids": ids, "positions": positions, "logit_indices": np.arange(ids.shape[-1])}
    inputs = [
        named[a.hint].astype(numpy_dtype(a.type.dtype))
        for a in func.args
        if isinstance(a.type, TensorType)
    ]
    found: Array = run(func, inputs, params, precision=precision)[0]
    return found


@dataclass(frozen=True)
class _Paged:
    prefill: Func
    decode: Func | None
    prompts: Prompts
    params: Params
    precision: str

    def run(self) -> Logits:
        lengths = [len(ids) for ids in self.prompts.ids]
        found = {"prefill": self.chunks([lengths])}
        if max(lengths) > 5:
            first = [n - n // 2 for n in lengths]
            found["chunked"] = self.chunks([first, [n // 2 for n in lengths]])
        if self.decode is not None:
            batch = PagedBatch(self.prefill, self.prompts, self.precision)
            self.step(self.prefill, batch, [n - 1 for n in lengths])
            found["decode"] = self.step(self.decode, batch, [1] * len(lengths))
        return found

    def alone(self) -> list[Array]:
        """A step for each sequence: some op still takes all rows for one sequence."""
        lengths = [len(ids) for ids in self.prompts.ids]
        return self.chunks(
            [[n * (i == r) for i, n in enumerate(lengths)] for r in range(len(lengths))]
        )

    def chunks(self, chunks: list[list[int]]) -> list[Array]:
        batch = PagedBatch(self.prefill, self.prompts, self.precision)
        parts = [self.step(self.prefill, batch, chunk) for chunk in chunks]
        return [np.concatenate(rows) for rows in zip(*parts, strict=True)]

    def step(self, func: Func, batch: PagedBatch, new: Sequence[int]) -> list[Array]:
        """Run the next `new` tokens of each sequence; those with none are left out."""
        rows = [r for r, n in enumerate(new) if n]
        counts = [n for n in new if n]
        if not rows:
            return [np.empty((0, 0))] * len(new)
        inputs: list[Any] = batch.inputs(func, rows, counts)
        logits_, *caches = run(func, inputs, self.params, precision=self.precision)
        batch.commit(rows, counts, caches)
        made = dict(zip(rows, np.split(logits_, np.cumsum(counts)[:-1]), strict=True))
        return [made.get(r, logits_[:0]) for r in range(len(new))]
