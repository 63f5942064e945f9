"""Recurrent cores: what a token does to the state of its sequence. Two cards each.

`nn.<core>` is for whole sequences `[B, S, ..]` that begin with a state of zeros; `serve.<core>` is
for a ragged batch `[T, ..]` whose states are in a pool: the sequence in rows starts[r] to
starts[r + 1] continues from the state in slot slots[r], or from zeros if its first position is 0.
A core is declared once, for one sequence; both cards follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from inferc.ir.card import Attr, Attrs, BadSample, Card, Sample, TypeMismatch, register
from inferc.ir.dims import Size, product
from inferc.ir.ops._shapes import Dims
from inferc.ir.ops.recurrent_reference import (
    CONV_ACTIVATIONS,
    causal_conv1d,
    gated_delta_rule,
    linear_scan,
    selective_scan,
    ssd_scan,
)
from inferc.ir.types import StateType, TensorType, Type

Axes = tuple[str, ...]
Operands = tuple[tuple[str, Axes], ...]
_STEP: Operands = (
    ("positions", ("T",)), ("sequence_starts", ("R + 1",)), ("state_slots", ("R",)),
)  # fmt: skip


@dataclass(frozen=True)
class Recurrence:
    """A recurrent core.

    Attributes:
        name: without the family.
        summary: one sentence.
        rows: operands with a row a token, and their axes behind those of the tokens.
        weights: operands that are the same for all tokens; a name with `?` may be left out.
        result: axes of the result behind those of the tokens.
        state: axes of the state; `K - 1` is one less than K.
        run: `run(state or None, *rows, *weights, **attrs) -> (result, state)` for one sequence.
        flops: floating operations of one token.
        sizes: values of the axes in samples.
        attrs: attributes of both cards.
        sample_attrs: attributes of the samples.
        groups: axis G must divide axis H.
    """

    name: str
    summary: str
    rows: Operands
    weights: Operands
    result: Axes
    state: Axes
    run: Callable[..., tuple[np.ndarray, np.ndarray]]
    flops: Callable[[Mapping[str, int]], int]
    sizes: Mapping[str, int]
    attrs: tuple[Attr, ...] = ()
    sample_attrs: Attrs | None = None
    groups: bool = False

    def state_type(self, dims: Dims) -> StateType:
        """Type of the state for sizes that the operands have bound."""
        return StateType(tuple(self.size(dims, axis) for axis in self.state), "f32")

    def size(self, dims: Dims, axis: str) -> int:
        """A size that must be a number."""
        name, _, less = axis.partition(" - ")
        size = dims[name]
        if not isinstance(size, int):
            raise TypeMismatch(f"{dims.op}: dim {name} must be a number, found {size}")
        return size - int(less or 0)

    def bind(self, op: str, types: Sequence[Type], lead: Axes) -> Dims:
        """Match rows, then weights. Raises TypeMismatch."""
        dims = Dims(op)
        specs = [(name, (*lead, *axes)) for name, axes in self.rows]
        specs += [(name.rstrip("?"), axes) for name, axes in self.weights]
        for (name, axes), type_ in zip(specs, types, strict=False):
            dims.match(name, type_, *axes)
        for axes in (self.result, self.state):
            for axis in axes:
                self.size(dims, axis)
        if self.groups and self.size(dims, "H") % self.size(dims, "G"):
            raise TypeMismatch(f"{op}: {dims['H']} heads are no multiple of {dims['G']} groups")
        if "M" in dims.sizes and dims["M"] not in (1, dims["K"]):
            raise TypeMismatch(f"{op}: dim M must be 1 or {dims['K']}, found {dims['M']}")
        return dims

    def numbers(self, dims: Dims) -> dict[str, int]:
        """Sizes of all axes that are numbers."""
        return {name: size for name, (size, _) in dims.sizes.items() if isinstance(size, int)}


def _shape(recurrence: Recurrence, dims: Dims, lead: Axes) -> tuple[Size, ...]:
    return (*(dims[a] for a in lead), *(recurrence.size(dims, a) for a in recurrence.result))


def _whole_card(r: Recurrence) -> Card:
    """The card for whole sequences."""
    op, lead = f"nn.{r.name}", ("B", "S")

    def infer(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
        return (TensorType(_shape(r, r.bind(op, types, lead), lead), "f32"),)

    def reference(*arrays: np.ndarray, **attrs: Any) -> np.ndarray:
        rows, weights = arrays[: len(r.rows)], arrays[len(r.rows) :]
        one = (r.run(None, *(x[b] for x in rows), *weights, **attrs)[0] for b in _range(rows))
        return np.stack(list(one))

    def flops(types: Sequence[Type], attrs: Attrs) -> Size:
        dims = r.bind(op, types, lead)
        return product((dims["B"], dims["S"])) * r.flops(r.numbers(dims))

    rows = tuple(_sample(r, (2, 5), axes) for _, axes in r.rows)
    weights = tuple(_sample(r, (), axes) for _, axes in r.weights)
    return Card(
        op, r.summary, (*_specs(r.rows, lead), *_specs(r.weights)), infer, reference, r.attrs,
        flops=flops, samples=(Sample((*rows, *weights), r.sample_attrs or {}),),
        refused=(
            BadSample((rows[0].with_shape((2, 6, *rows[0].shape[2:])), *rows[1:],
                       *_broken(weights)), r.sample_attrs or {}, "dim"),
        ),
    )  # fmt: skip


def _serve_card(r: Recurrence) -> Card:
    """The card for a ragged batch over a pool of states: state first, weights last."""
    op, count = f"serve.{r.name}", len(r.rows)

    def bind(types: Sequence[Type]) -> Dims:
        state, rows, step = types[0], types[1 : 1 + count], types[1 + count : 4 + count]
        dims = r.bind(op, (*rows, *types[4 + count :]), ("T",))
        for (name, axes), type_ in zip(_STEP, step, strict=True):
            dims.match(name, type_, *axes)
        dims.bind("state_slots", "R + 1", dims["R"] + 1)
        expected = r.state_type(dims)
        if not isinstance(state, StateType) or state.shape != expected.shape:
            raise TypeMismatch(f"{op}: expected {expected}, found {state}")
        return dims

    def infer(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
        return TensorType(_shape(r, bind(types), ("T",)), "f32"), types[0]

    def reference(state: np.ndarray, *arrays: np.ndarray, **attrs: Any) -> Any:
        rows, weights = arrays[:count], arrays[count + 3 :]
        pool, parts = state.copy(), []
        for span, slot, before in _spans(pool, *arrays[count : count + 3]):
            part, after = r.run(before, *(x[span] for x in rows), *weights, **attrs)
            pool[slot] = after
            parts.append(part)
        return np.concatenate(parts), pool

    def flops(types: Sequence[Type], attrs: Attrs) -> Size:
        dims = bind(types)
        return dims["T"] * r.flops(r.numbers(dims))

    def reads(types: Sequence[Type], attrs: Attrs) -> tuple[Size, ...]:
        sequences, state = bind(types)["R"], types[0]
        assert isinstance(state, StateType)
        rest = (t.nbytes for t in types[1:] if isinstance(t, TensorType))
        return sequences * state.nbytes, *rest

    def writes(types: Sequence[Type], attrs: Attrs) -> tuple[Size, ...]:
        dims, state = bind(types), types[0]
        assert isinstance(state, StateType)
        return TensorType(_shape(r, dims, ("T",)), "f32").nbytes, dims["R"] * state.nbytes

    sample = _serve_sample(r)
    specs = ("state: state", *_specs(r.rows, ("T",)), *_specs(_STEP), *_specs(r.weights))
    return Card(
        op, f"{r.summary[:-1]}, continued from the states of the sequences.", specs, infer,
        reference, r.attrs, flops=flops, reads=reads, writes=writes, stateful=True,
        samples=(sample,),
        refused=(
            BadSample((sample.operands[1], *sample.operands[1:]), sample.attrs, "expected state"),
        ),
    )  # fmt: skip


def _spans(
    pool: np.ndarray, positions: np.ndarray, starts: np.ndarray, slots: np.ndarray
) -> Iterator[tuple[slice, int, np.ndarray | None]]:
    """Rows, slot, and state before the step (None for zeros) of the sequences with rows."""
    for r, slot in enumerate(slots):
        span = slice(int(starts[r]), int(starts[r + 1]))
        if span.start < span.stop:
            fresh = positions[span.start] == 0
            yield span, int(slot), None if fresh else pool[slot]


def _range(rows: Sequence[np.ndarray]) -> range:
    return range(rows[0].shape[0])


def _specs(operands: Operands, lead: Axes = ()) -> tuple[str, ...]:
    return tuple(f"{name}: [{', '.join((*lead, *axes))}]" for name, axes in operands)


def _sample(r: Recurrence, lead: tuple[int, ...], axes: Axes) -> TensorType:
    return TensorType((*lead, *(r.sizes[a] for a in axes)), "f32")


def _serve_sample(r: Recurrence) -> Sample:
    """Three more tokens of a sequence in slot 2, and the first of one in slot 0."""
    rows = tuple(_sample(r, (4,), axes) for _, axes in r.rows)
    weights = tuple(_sample(r, (), axes) for _, axes in r.weights)
    step = TensorType((4,), "i32"), TensorType((3,), "i32"), TensorType((2,), "i32")
    parts = [axis.partition(" - ") for axis in r.state]
    state = StateType(tuple(r.sizes[name] - int(less or 0) for name, _, less in parts), "f32")
    at = 1 + len(rows)
    values = {at: (3, 4, 5, 0), at + 1: (0, 3, 4), at + 2: (2, 0)}
    return Sample((state, *rows, *step, *weights), r.sample_attrs or {}, values)


def _broken(weights: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
    """Weights whose first one has another last axis."""
    if not weights:
        return weights
    first = weights[0]
    return (first.with_shape((*first.shape[:-1], 31)), *weights[1:])


RECURRENCES = (
    Recurrence(
        "causal_conv1d",
        "Convolution along the sequence, each channel alone, over the last K tokens.",
        (("x", ("C",)),),
        (("w", ("K", "C")), ("b?", ("C",))),
        ("C",),
        ("K - 1", "C"),
        causal_conv1d,
        lambda n: n["C"] * (2 * n["K"] + 12),
        {"C": 6, "K": 4},
        (Attr("activation", (str,), False, "none", tuple(CONV_ACTIVATIONS)),),
        {"activation": "silu"},
    ),
    Recurrence(
        "selective_scan",
        "h = exp(dt a) h + dt x b and y = c h in every channel (Mamba, arXiv 2312.00752).",
        (("x", ("C",)), ("dt", ("C",)), ("b", ("N",)), ("c", ("N",))),
        (("a", ("N", "C")),),
        ("C",),
        ("N", "C"),
        selective_scan,
        lambda n: n["C"] * n["N"] * 14,
        {"C": 6, "N": 3},
    ),
    Recurrence(
        "ssd_scan",
        "h = exp(dt a) h + dt x b and y = c h in every head (Mamba 2, arXiv 2405.21060).",
        (("x", ("H", "P")), ("dt", ("H",)), ("b", ("G", "N")), ("c", ("G", "N"))),
        (("a", ("H",)),),
        ("H", "P"),
        ("H", "N", "P"),
        ssd_scan,
        lambda n: n["H"] * n["P"] * n["N"] * 5,
        {"H": 4, "P": 6, "G": 2, "N": 3},
        groups=True,
    ),
    Recurrence(
        "gated_delta_rule",
        "h = exp(g) h, h += beta k (v - k h), y = q h (arXiv 2412.06464); M is 1 or K.",
        (("q", ("G", "K")), ("k", ("G", "K")), ("v", ("H", "V")),
         ("g", ("H", "M")), ("beta", ("H",))),
        (),
        ("H", "V"),
        ("H", "K", "V"),
        gated_delta_rule,
        lambda n: n["H"] * n["K"] * n["V"] * 7,
        {"H": 4, "V": 6, "G": 2, "K": 3, "M": 3},
        groups=True,
    ),
    Recurrence(
        "linear_scan",
        "h = gate h + x in every channel (RG-LRU, arXiv 2402.19427).",
        (("x", ("C",)), ("gate", ("C",))),
        (),
        ("C",),
        ("C",),
        linear_scan,
        lambda n: n["C"] * 2,
        {"C": 6},
    ),
)  # fmt: skip

WHOLE = {f"nn.{r.name}": r for r in RECURRENCES}
SERVED = {f"serve.{r.name}": r for r in RECURRENCES}
for _recurrence in RECURRENCES:
    register(_whole_card(_recurrence))
    register(_serve_card(_recurrence))
