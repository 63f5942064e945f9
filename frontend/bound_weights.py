"""Parameters as expressions of stored tensors: what a binding says, as ops on `param`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from inferc.frontend.joined_weights import JoinedWeight
from inferc.frontend.quantised_tensor import QuantisedTensor
from inferc.frontend.scaled_weights import Sides, joined
from inferc.frontend.weight_transforms import (
    Binding,
    Rows,
    Stack,
    SubtractOne,
    Transform,
    Transpose,
    UnpermuteHeads,
)
from inferc.frontend.weights import StoredTensor, WeightStore
from inferc.ir.card import AttrValue
from inferc.ir.core import Builder, Op, Value
from inferc.ir.location import Location
from inferc.ir.types import TensorType

_NO_SIDES = Sides()


@dataclass
class BoundWeight:
    """A value made of parameters only.

    `transposed` is a transpose of the last two axes that is not yet an op: the graph often
    transposes back, and the blocks of a quantised weight cannot be transposed at all. `sides` goes
    with codes that are not the values themselves.
    """

    value: Value
    transposed: bool = False
    sides: Sides = _NO_SIDES


@dataclass
class WeightBuilder:
    """Emits parameters and what is done to them into one function."""

    builder: Builder
    bindings: Mapping[str, Binding]
    store: WeightStore
    tensors: dict[str, StoredTensor] = field(default_factory=dict)
    params: dict[str, Value] = field(default_factory=dict)
    floats: dict[Value, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        uses = Counter(s for b in self.bindings.values() for s in b.sources)
        self.shared = {source for source, count in uses.items() if count > 1}

    def weight(self, op: Op) -> BoundWeight | JoinedWeight:
        """The parameter as an expression of stored tensors."""
        binding = self.bindings[str(op.attrs["name"])]
        parts = [self._param(binding, source, op) for source in binding.sources]
        each = [
            self._sides(source, part, op)
            for source, part in zip(binding.sources, parts, strict=True)
        ]
        sides = joined(self.builder, binding.parameter, each, op.loc)
        stacks = [t.count for t in binding.transforms if isinstance(t, Stack)]
        if binding.axis == 1 or stacks:
            assert len(binding.transforms) == len(stacks), "joined tensors are not changed further"
            if sides:
                parts = [
                    self.plain(BoundWeight(p, sides=s), op.loc).value
                    for p, s in zip(parts, each, strict=True)
                ]
            return JoinedWeight(self._alike(parts, op.loc), stacks[0] if stacks else 0)
        value = parts[0]
        if len(parts) > 1:
            value = self._joined(parts, op.loc)
        weight = BoundWeight(value, sides=sides)
        for transform in binding.transforms:
            weight = self._transformed(weight, transform, op.loc)
        return weight

    def _param(self, binding: Binding, source: str, op: Op) -> Value:
        """`param` of one stored tensor, under the model's name where that is unambiguous."""
        alone = len(binding.sources) == 1 and source not in self.shared
        name = binding.parameter if alone else source
        if name not in self.params:
            tensor = self.store[source]
            self.tensors[name] = tensor
            type_ = TensorType(tuple(tensor.shape), tensor.dtype)
            self.params[name] = self.builder.param(name, type_, loc=op.loc)
            self.params[name].hint = op.result.hint
        return self.params[name]

    def _sides(self, source: str, part: Value, op: Op) -> Sides:
        """Scale and order of a tensor of plain codes, as params."""
        tensor = self.store[source]
        if not isinstance(tensor, QuantisedTensor):
            return Sides()
        assert part.producer is not None
        name = part.producer.attrs["name"]
        scale, order = tensor.row_scale, tensor.order
        return Sides(
            None if scale is None else self._vector(f"{name}.row_scale", scale, op),
            None if order is None else self._vector(order.name, order, op),
        )

    def _vector(self, name: str, tensor: StoredTensor, op: Op) -> Value:
        if name not in self.params:
            self.tensors[name] = tensor
            type_ = TensorType(tuple(tensor.shape), tensor.dtype)
            self.params[name] = self.builder.param(name, type_, loc=op.loc)
        return self.params[name]

    def _joined(self, parts: Sequence[Value], loc: Location) -> Value:
        return self.builder.op("core.concat", *self._alike(parts, loc), axis=0, loc=loc)

    def _alike(self, parts: Sequence[Value], loc: Location) -> tuple[Value, ...]:
        """The parts in one stored type."""
        if len({tensor(p).dtype for p in parts}) > 1:
            return tuple(self.float(p, loc) for p in parts)
        return tuple(parts)

    def _transformed(self, weight: BoundWeight, transform: Transform, loc: Location) -> BoundWeight:
        if isinstance(transform, Transpose):
            return replace(weight, transposed=not weight.transposed)
        if isinstance(transform, Rows) and weight.sides and not weight.transposed:
            span: dict[str, AttrValue] = {
                "axis": 0, "start": transform.start, "stop": transform.stop,
            }  # fmt: skip
            cut = self.builder.ops("core.slice", weight.value, loc=loc, **span)
            return BoundWeight(cut.result, sides=weight.sides.rows(self.builder, cut))
        value, op = self.settled(self.plain(weight, loc), loc), self.builder.op
        if isinstance(transform, UnpermuteHeads):
            return BoundWeight(self._unpermuted(value, transform.heads, loc))
        if isinstance(transform, SubtractOne):
            one = self.builder.constant(1.0, "f32", loc=loc)
            return BoundWeight(op("core.sub", self.float(value, loc), one, loc=loc))
        assert isinstance(transform, Rows)
        start, stop = transform.start, transform.stop
        return BoundWeight(op("core.slice", value, axis=0, start=start, stop=stop, loc=loc))

    def _unpermuted(self, value: Value, heads: int, loc: Location) -> Value:
        """Rows `[heads, D/2, 2]` to `[heads, 2, D/2]`."""
        shape, op = tensor(value).shape, self.builder.op
        rest = tuple(range(3, 2 + len(shape)))
        half = shape[0] // (2 * heads)
        split = op("core.reshape", value, shape=(heads, half, 2, *shape[1:]), loc=loc)
        swapped = op("core.transpose", split, perm=(0, 2, 1, *rest), loc=loc)
        return op("core.reshape", swapped, shape=shape, loc=loc)

    def sliced(self, weight: BoundWeight, op: Op) -> BoundWeight | None:
        """A slice of rows that keeps a pending transpose, or the scale; None for other slices."""
        rank, axis = tensor(weight.value).rank, op.attrs["axis"]
        assert isinstance(axis, int)
        axis %= rank
        if weight.transposed and axis >= rank - 2:
            axis = 2 * rank - 3 - axis
        if axis == rank - 1 or (weight.sides and axis != 0):
            return None
        span = dict(op.attrs) | {"axis": axis}
        cut = self.builder.ops("core.slice", weight.value, loc=op.loc, **span)
        return BoundWeight(cut.result, weight.transposed, weight.sides.rows(self.builder, cut))

    def plain(self, weight: BoundWeight, loc: Location) -> BoundWeight:
        """The weight as values, its scale applied."""
        if not weight.sides:
            return weight
        assert weight.value.producer is not None
        name = str(weight.value.producer.attrs.get("name", "A weight"))
        value = self.float(weight.value, loc)
        return BoundWeight(weight.sides.applied(self.builder, name, value, loc), weight.transposed)

    def settled(self, weight: BoundWeight, loc: Location) -> Value:
        """The weight as a value, with its pending transpose done."""
        if not weight.transposed:
            return weight.value
        value = self.float(weight.value, loc) if tensor(weight.value).is_block else weight.value
        weight.value = self.builder.op(
            "core.transpose", value, perm=swapped_axes(tensor(value)), loc=loc
        )
        weight.transposed = False
        return weight.value

    def float(self, value: Value, loc: Location) -> Value:
        """The value in f32, cast once."""
        if tensor(value).dtype == "f32":
            return value
        if value not in self.floats:
            self.floats[value] = self.builder.op("core.cast", value, dtype="f32", loc=loc)
        return self.floats[value]


def swapped_axes(type_: TensorType) -> tuple[int, ...]:
    """The permutation that exchanges the last two axes."""
    rank = type_.rank
    return (*range(rank - 2), rank - 1, rank - 2)


def tensor(value: Value) -> TensorType:
    """The type of a value that must be a tensor."""
    assert isinstance(value.type, TensorType)
    return value.type
