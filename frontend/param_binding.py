"""Put stored weights under a captured graph.

Capture writes every parameter as f32. Here a parameter becomes the stored tensor (bf16, f16, a
block format), and what the file format did to a weight is undone by visible ops on the parameter.
Linear layers, lookups and norms read a weight as stored, any other op reads it cast to f32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from inferc.frontend.bound_weights import BoundWeight, WeightBuilder, swapped_axes, tensor
from inferc.frontend.joined_weights import JoinedWeight
from inferc.frontend.weight_transforms import Binding
from inferc.frontend.weights import StoredTensor, WeightStore
from inferc.ir.core import Builder, Func, Module, Op, Value
from inferc.ir.location import Location

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
        tensors |= binder.make.tensors
    return BoundModule(bound, tensors)


@dataclass
class _Binder:
    source: Func
    bindings: Mapping[str, Binding]
    store: WeightStore

    def __post_init__(self) -> None:
        self.func = Func(self.source.name, dict(self.source.symbols))
        self.builder = Builder(self.func)
        self.make = WeightBuilder(self.builder, self.bindings, self.store)
        self.values: dict[Value, Value] = {}
        self.weights: dict[Value, BoundWeight | JoinedWeight] = {}

    def run(self) -> Func:
        """The new function."""
        for arg in self.source.args:
            self.values[arg] = self.func.add_arg(arg.hint, arg.type)
        for op in self.source.ops:
            if op.name == "param":
                self.weights[op.result] = self.make.weight(op)
            elif op.name in _MOVES and op.operands[0] in self.weights:
                self._move(op)
            else:
                self._copy(op)
        results = [
            self._read(r, self.source.ops[-1].loc, stored=False) for r in self.source.results
        ]
        return self.builder.returns(*results)

    def _whole(self, value: Value, loc: Location) -> BoundWeight:
        """The weight as one value, its pieces joined."""
        weight = self.weights[value]
        if isinstance(weight, JoinedWeight):
            weight = self.weights[value] = BoundWeight(weight.join(self.builder, loc))
        return weight

    # -- ops
    def _move(self, op: Op) -> None:
        joined = self.weights[op.operands[0]]
        if isinstance(joined, JoinedWeight):
            cut = joined.slice(op)
            if cut is not None:
                self.weights[op.result] = cut
                return
        weight = self._whole(op.operands[0], op.loc)
        if op.name == "core.transpose" and op.attrs["perm"] == swapped_axes(tensor(weight.value)):
            self.weights[op.result] = replace(weight, transposed=not weight.transposed)
            return
        if op.name == "core.slice" and (weight.sides or weight.transposed):
            cut = self.make.sliced(weight, op)
            if cut is not None:
                self.weights[op.result] = cut
                return
        value = self.make.settled(self.make.plain(weight, op.loc), op.loc)
        if tensor(value).is_block and not _keeps_rows(op):
            value = self.make.float(value, op.loc)
        moved = self.builder.op(op.name, value, loc=op.loc, hint=op.result.hint, **op.attrs)
        self.weights[op.result] = BoundWeight(moved)

    def _linear(self, op: Op) -> bool:
        """Emit a linear layer whose weight has a scale or an order; False if it has not.

        A product with the transpose of a weight is one too, and reads blocks as they are.
        """
        x, w, *bias = op.operands
        weight, turned = self.weights.get(w), op.name == "core.matmul"
        if not isinstance(weight, BoundWeight) or weight.transposed is not turned:
            return False
        type_ = tensor(weight.value)
        if not weight.sides and not (turned and type_.is_block and type_.rank == 2):
            return False
        read = self._read(x, op.loc, stored=False)
        added = self._read(bias[0], op.loc, stored=False) if bias else None
        self.values[op.result] = weight.sides.linear(self.builder, op, read, weight.value, added)
        return True

    def _copy(self, op: Op) -> None:
        if op.name in ("core.linear", "core.matmul") and self._linear(op):
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
        settled = self.make.settled(self.make.plain(self._whole(value, loc), loc), loc)
        return settled if stored else self.make.float(settled, loc)


def _keeps_rows(op: Op) -> bool:
    """Whether a move leaves the last axis as it is, and so the blocks along it."""
    shape = tensor(op.operands[0]).shape
    if op.name == "core.slice":
        return op.attrs["axis"] != len(shape) - 1
    if op.name == "core.transpose":
        perm = op.attrs["perm"]
        return isinstance(perm, tuple) and perm[-1] == len(shape) - 1
    return tensor(op.result).shape[-1] == shape[-1]
