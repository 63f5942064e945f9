"""Put stored weights under a captured graph.

Capture writes every parameter as f32. Here a parameter becomes the stored tensor (bf16, f16, a
block format), and what the file format did to a weight is undone by visible ops on the parameter.
Linear layers, lookups and norms read a weight as stored, any other op reads it cast to f32.
"""

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
from inferc.ir.core import Builder, Func, Module, Op, Value
from inferc.ir.location import Location
from inferc.ir.types import TensorType

# op -> operand positions that take a weight of any stored type
_READS_STORED: dict[str, tuple[int, ...]] = {
    "core.linear": (1, 2),
    "core.embedding": (0,),
    "nn.rms_norm": (1,),
    "nn.layer_norm": (1, 2),
    "nn.experts": tuple(range(3, 9)),
}
# ops that keep the stored type of what they move
_MOVES = ("core.transpose", "core.reshape", "core.slice")


_NO_SIDES = Sides()


@dataclass(frozen=True)
class BoundModule:
    """A module over stored weights, and the stored tensor of each parameter of the IR."""

    module: Module
    tensors: dict[str, StoredTensor]


def bind_weights(
    module: Module, bindings: Mapping[str, Binding], store: WeightStore
) -> BoundModule:
    """The module with its parameters bound to stored tensors."""
    bound, tensors = Module(), dict[str, StoredTensor]()
    for func in module:
        binder = _Binder(func, bindings, store)
        bound.add(binder.run())
        tensors |= binder.tensors
    return BoundModule(bound, tensors)


@dataclass
class _Weight:
    """A value made of parameters only.

    `transposed` is a transpose of the last two axes that is not yet an op: the graph often
    transposes back, and the blocks of a quantised weight cannot be transposed at all. `sides` goes
    with codes that are not the values themselves.
    """

    value: Value
    transposed: bool = False
    sides: Sides = _NO_SIDES


@dataclass
class _Binder:
    source: Func
    bindings: Mapping[str, Binding]
    store: WeightStore
    tensors: dict[str, StoredTensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.func = Func(self.source.name, dict(self.source.symbols))
        self.builder = Builder(self.func)
        self.values: dict[Value, Value] = {}
        self.weights: dict[Value, _Weight | JoinedWeight] = {}
        self.params: dict[str, Value] = {}
        self.floats: dict[Value, Value] = {}
        uses = Counter(s for b in self.bindings.values() for s in b.sources)
        self.shared = {source for source, count in uses.items() if count > 1}

    def run(self) -> Func:
        """The new function."""
        for arg in self.source.args:
            self.values[arg] = self.func.add_arg(arg.hint, arg.type)
        for op in self.source.ops:
            if op.name == "param":
                self.weights[op.result] = self._weight(op)
            elif op.name in _MOVES and op.operands[0] in self.weights:
                self._move(op)
            else:
                self._copy(op)
        results = [
            self._read(r, self.source.ops[-1].loc, stored=False) for r in self.source.results
        ]
        return self.builder.returns(*results)

    # -- parameters
    def _weight(self, op: Op) -> _Weight | JoinedWeight:
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
                    self._plain(_Weight(p, sides=s), op.loc).value
                    for p, s in zip(parts, each, strict=True)
                ]
            return JoinedWeight(self._alike(parts, op.loc), stacks[0] if stacks else 0)
        value = parts[0]
        if len(parts) > 1:
            value = self._joined(parts, op.loc)
        weight = _Weight(value, sides=sides)
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
        if len({_tensor(p).dtype for p in parts}) > 1:
            return tuple(self._float(p, loc) for p in parts)
        return tuple(parts)

    def _whole(self, value: Value, loc: Location) -> _Weight:
        """The weight as one value, its pieces joined."""
        weight = self.weights[value]
        if isinstance(weight, JoinedWeight):
            weight = self.weights[value] = _Weight(weight.join(self.builder, loc))
        return weight

    def _transformed(self, weight: _Weight, transform: Transform, loc: Location) -> _Weight:
        if isinstance(transform, Transpose):
            return replace(weight, transposed=not weight.transposed)
        if isinstance(transform, Rows) and weight.sides and not weight.transposed:
            span: dict[str, AttrValue] = {
                "axis": 0, "start": transform.start, "stop": transform.stop,
            }  # fmt: skip
            cut = self.builder.ops("core.slice", weight.value, loc=loc, **span)
            return _Weight(cut.result, sides=weight.sides.rows(self.builder, cut))
        value, op = self._settled(self._plain(weight, loc), loc), self.builder.op
        if isinstance(transform, UnpermuteHeads):
            return _Weight(self._unpermuted(value, transform.heads, loc))
        if isinstance(transform, SubtractOne):
            one = self.builder.constant(1.0, "f32", loc=loc)
            return _Weight(op("core.sub", self._float(value, loc), one, loc=loc))
        assert isinstance(transform, Rows)
        start, stop = transform.start, transform.stop
        return _Weight(op("core.slice", value, axis=0, start=start, stop=stop, loc=loc))

    def _unpermuted(self, value: Value, heads: int, loc: Location) -> Value:
        """Rows `[heads, D/2, 2]` to `[heads, 2, D/2]`."""
        shape, op = _tensor(value).shape, self.builder.op
        rest = tuple(range(3, 2 + len(shape)))
        half = shape[0] // (2 * heads)
        split = op("core.reshape", value, shape=(heads, half, 2, *shape[1:]), loc=loc)
        swapped = op("core.transpose", split, perm=(0, 2, 1, *rest), loc=loc)
        return op("core.reshape", swapped, shape=shape, loc=loc)

    # -- ops
    def _move(self, op: Op) -> None:
        joined = self.weights[op.operands[0]]
        if isinstance(joined, JoinedWeight):
            cut = joined.slice(op)
            if cut is not None:
                self.weights[op.result] = cut
                return
        weight = self._whole(op.operands[0], op.loc)
        if op.name == "core.transpose" and op.attrs["perm"] == _swap(_tensor(weight.value)):
            self.weights[op.result] = replace(weight, transposed=not weight.transposed)
            return
        if op.name == "core.slice" and (weight.sides or weight.transposed):
            cut = self._sliced(weight, op)
            if cut is not None:
                self.weights[op.result] = cut
                return
        value = self._settled(self._plain(weight, op.loc), op.loc)
        if _tensor(value).is_block and not _keeps_rows(op):
            value = self._float(value, op.loc)
        moved = self.builder.op(op.name, value, loc=op.loc, hint=op.result.hint, **op.attrs)
        self.weights[op.result] = _Weight(moved)

    def _sliced(self, weight: _Weight, op: Op) -> _Weight | None:
        """A slice of rows that keeps a pending transpose, or the scale; None for other slices."""
        rank, axis = _tensor(weight.value).rank, op.attrs["axis"]
        assert isinstance(axis, int)
        axis %= rank
        if weight.transposed and axis >= rank - 2:
            axis = 2 * rank - 3 - axis
        if axis == rank - 1 or (weight.sides and axis != 0):
            return None
        span = dict(op.attrs) | {"axis": axis}
        cut = self.builder.ops("core.slice", weight.value, loc=op.loc, **span)
        return _Weight(cut.result, weight.transposed, weight.sides.rows(self.builder, cut))

    def _plain(self, weight: _Weight, loc: Location) -> _Weight:
        """The weight as values, its scale applied."""
        if not weight.sides:
            return weight
        assert weight.value.producer is not None
        name = str(weight.value.producer.attrs.get("name", "A weight"))
        value = self._float(weight.value, loc)
        return _Weight(weight.sides.applied(self.builder, name, value, loc), weight.transposed)

    def _linear(self, op: Op) -> bool:
        """Emit a linear layer whose weight has a scale or an order; False if it has not."""
        x, w, *bias = op.operands
        weight = self.weights.get(w)
        if not isinstance(weight, _Weight) or not weight.sides or weight.transposed:
            return False
        read = self._read(x, op.loc, stored=False)
        added = self._read(bias[0], op.loc, stored=False) if bias else None
        self.values[op.result] = weight.sides.linear(self.builder, op, read, weight.value, added)
        return True

    def _copy(self, op: Op) -> None:
        if op.name == "core.linear" and self._linear(op):
            return
        stored = _READS_STORED.get(op.name, ())
        operands = [self._read(v, op.loc, stored=i in stored) for i, v in enumerate(op.operands)]
        made = self.builder.ops(
            op.name, *operands, loc=op.loc, hints=[r.hint for r in op.results], **op.attrs
        )
        self.values |= dict(zip(op.results, made.results, strict=True))

    def _read(self, value: Value, loc: Location, *, stored: bool) -> Value:
        """The new value; a weight in its stored type or in f32."""
        if value not in self.weights:
            return self.values[value]
        settled = self._settled(self._plain(self._whole(value, loc), loc), loc)
        return settled if stored else self._float(settled, loc)

    def _settled(self, weight: _Weight, loc: Location) -> Value:
        """The weight as a value, with its pending transpose done."""
        if not weight.transposed:
            return weight.value
        value = self._float(weight.value, loc) if _tensor(weight.value).is_block else weight.value
        weight.value = self.builder.op("core.transpose", value, perm=_swap(_tensor(value)), loc=loc)
        weight.transposed = False
        return weight.value

    def _float(self, value: Value, loc: Location) -> Value:
        """The value in f32, cast once."""
        if _tensor(value).dtype == "f32":
            return value
        if value not in self.floats:
            self.floats[value] = self.builder.op("core.cast", value, dtype="f32", loc=loc)
        return self.floats[value]


def _swap(type_: TensorType) -> tuple[int, ...]:
    """The permutation that exchanges the last two axes."""
    rank = type_.rank
    return (*range(rank - 2), rank - 1, rank - 2)


def _keeps_rows(op: Op) -> bool:
    """Whether a move leaves the last axis as it is, and so the blocks along it."""
    shape = _tensor(op.operands[0]).shape
    if op.name == "core.slice":
        return op.attrs["axis"] != len(shape) - 1
    if op.name == "core.transpose":
        perm = op.attrs["perm"]
        return isinstance(perm, tuple) and perm[-1] == len(shape) - 1
    return _tensor(op.result).shape[-1] == shape[-1]


def _tensor(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type
