"""Lets numbers counted along the sequence be the positions of the tokens.

    %n = core.iota() {size = S} : i64[S]                  %e = core.embedding(%w, %positions)
    %e = core.embedding(%w, %n) : f32[S, 64]       =>     %y = core.add(%x, %e)
    %y = core.add(%x, %e) : f32[B, S, 64]

A model that takes token ids only counts positions itself: `arange(S)`, or the first S rows of a
table. In a whole sequence these are the positions, which is what they stay when it is served in
pieces. Everything computed from a count gets a batch axis in front (as `vmap` would give it), where
it meets a value of the batch with its tokens on the second axis.

Not raised: values with the sequence on two axes (masks, read by raise-sdpa), counts that meet the
sequence on another axis.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from inferc.ir.card import AttrValue
from inferc.ir.core import Func, Module, Op, Use, Value
from inferc.ir.dims import Dim, Size
from inferc.ir.ops.elementwise import ELEMENTWISE
from inferc.ir.rewrite import Rewriter
from inferc.passes.base import Pass, PassContext
from inferc.passes.match import axis_attr, ints_attr, made_by, size_attr, tensor

_BOUNDARY = ELEMENTWISE | {"core.broadcast_to"}


@dataclass(frozen=True)
class RaisePositions(Pass):
    """Counts along the sequence become positions."""

    name = "raise-positions"

    def run(self, module: Module, context: PassContext) -> None:
        """Rewrite functions of token ids and positions, both [B, S]."""
        for func in module:
            tokens = [tensor(a).shape for a in func.args[:2]]
            if len(tokens) == 2 and tokens[0] == tokens[1] and len(tokens[0]) == 2:
                counts = _Counts(func, context.rewriter(func), context, tokens[0])
                for op in list(func.ops):
                    counts.visit(op)


class _NotBatched(Exception):
    """A value cannot be given a batch axis; the text says why."""


@dataclass
class _Counts:
    func: Func
    rewriter: Rewriter
    context: PassContext
    tokens: tuple[Size, ...]
    made: dict[Value, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        batch, self.length = self.tokens
        self.batch: Size = batch
        self.counts: set[Value] = set()
        fixed: set[Value] = set()
        for op in self.func.ops:
            of_fixed = all(v in fixed for v in op.operands)
            if of_fixed and not self._begins(op):
                fixed.update(op.results)
            elif self._begins(op) and of_fixed:
                self.counts.update(op.results)
            elif op.operands and all(v in self.counts or v in fixed for v in op.operands):
                if not self._has_batch(op.results[0]):
                    self.counts.update(op.results)

    def _begins(self, op: Op) -> bool:
        """Whether counting begins here: 0 to S - 1, or the first S rows of a table."""
        if op.name == "core.iota":
            return op.attrs["size"] == self.length
        return (
            op.name == "core.slice"
            and op.attrs["start"] == 0
            and op.attrs["stop"] == self.length
            and op.attrs["step"] == 1
        )

    def _has_batch(self, value: Value) -> bool:
        names = self.batch.symbols() if isinstance(self.batch, Dim) else frozenset()
        return any(isinstance(s, Dim) and s.symbols() & names for s in tensor(value).shape)

    def visit(self, op: Op) -> None:
        """Batch the counts that this op combines with values of the batch."""
        if op.name not in _BOUNDARY or not self._has_batch(op.results[0]):
            return
        for i, value in enumerate(op.operands):
            if value in self.counts and tensor(value).shape.count(self.length) == 1:
                use = next(u for u in value.uses if u.op is op and u.index == i)
                self._batch(use, value)

    def _batch(self, use: Use, value: Value) -> None:
        op, shape = use.op, tensor(value).shape
        result = tensor(op.results[0]).shape
        front = len(result) - len(shape)
        if result[0] != self.batch or (front == 0 and shape[0] != 1):
            return
        try:
            batched = self.batched(value, op)
        except _NotBatched as reason:
            self.context.refuse("positions", op, str(reason))
            return
        rest = shape[1:] if front == 0 else (*([1] * (front - 1)), *shape)
        self.rewriter.spend()
        self.rewriter.set_operand(use, self._reshape(batched, (self.batch, *rest), op))
        self.context.hit("positions")

    # -- values with a batch axis: instead of a unit axis in front, else before all others
    def batched(self, value: Value, before: Op) -> Value:
        """The value for the positions of each sequence. Raises _NotBatched."""
        if value not in self.made:
            op = value.producer
            assert op is not None
            made = self._made(op, before)
            self.made[value] = self._reshape(made, self._lead(value), before)
        return self.made[value]

    def _lead(self, value: Value) -> tuple[Size, ...]:
        shape = tensor(value).shape
        return (self.batch, *(shape[1:] if len(shape) > 1 and shape[0] == 1 else shape))

    def _prefixed(self, value: Value, before: Op, rank: int) -> Value:
        """The batched value with the batch in front of `rank` axes."""
        shape = tensor(value).shape
        wide = (self.batch, *([1] * (rank - len(shape))), *shape)
        return self._reshape(self.batched(value, before), wide, before)

    def _made(self, op: Op, before: Op) -> Value:
        if self._begins(op):
            return self._start(op, before)
        if op.name in ELEMENTWISE or op.name in ("core.matmul", "core.broadcast_to"):
            return self._broadcasting(op, before)
        if op.name == "core.reshape":
            return self.batched(op.operands[0], before)
        if op.name == "core.embedding" and op.operands[0] not in self.counts:
            ids = self.batched(op.operands[1], before)
            return self._insert(op, before, op.operands[0], ids, attrs=dict(op.attrs))
        if op.name == "core.linear" and not any(v in self.counts for v in op.operands[1:]):
            x = self.batched(op.operands[0], before)
            return self._insert(op, before, x, *op.operands[1:], attrs=dict(op.attrs))
        if all(v in self.counts for v in op.operands):
            return self._along(op, before)
        raise _NotBatched(f"{op.name} of a count along the sequence has no batch form")

    def _along(self, op: Op, before: Op) -> Value:
        """Ops whose attributes name axes: none of these moves where the batch stands for a unit."""
        attrs: dict[str, AttrValue] = dict(op.attrs)
        if op.name not in ("core.transpose", "core.slice", "core.softmax", "core.concat"):
            raise _NotBatched(f"{op.name} of a count along the sequence has no batch form")
        unit_first = all(tensor(v).rank > 1 and tensor(v).shape[0] == 1 for v in op.operands)
        if op.name == "core.transpose":
            perm = ints_attr(op, "perm")
            lead = unit_first and perm[0] == 0
            attrs["perm"] = perm if lead else (0, *(p + 1 for p in perm))
        else:
            lead = unit_first and axis_attr(op) != 0
            attrs["axis"] = axis_attr(op) + (0 if lead else 1)
        operands = [
            self.batched(v, before) if lead else self._prefixed(v, before, tensor(v).rank)
            for v in op.operands
        ]
        return self._insert(op, before, *operands, attrs=attrs)

    def _start(self, op: Op, before: Op) -> Value:
        positions = self.func.args[1]
        if op.name == "core.iota":
            return self._cast(op, positions, before)
        source, axis, shape = op.operands[0], axis_attr(op), tensor(op.result).shape
        if all(s == 1 for i, s in enumerate(shape) if i != axis) and _is_count(source):
            return self._reshape(self._cast(op, positions, before), (self.batch, *shape), before)
        rows = size_attr(op, "stop")
        assert rows == self.length
        order = (axis, *(i for i in range(len(shape)) if i != axis))
        rest = tuple(shape[i] for i in order[1:])
        size = tensor(source).elements // tensor(source).shape[axis]
        table = self._insert_as("core.transpose", op, before, source, perm=order)
        table = self._reshape(table, (tensor(source).shape[axis], size), before)
        found = self._insert_as("core.embedding", op, before, table, positions)
        found = self._reshape(found, (self.batch, self.length, *rest), before)
        back = (0, *(order.index(i) + 1 for i in range(len(shape))))
        return self._insert_as("core.transpose", op, before, found, perm=back)

    def _broadcasting(self, op: Op, before: Op) -> Value:
        """Operands get their unit axes written out between the batch and their own axes."""
        rank, shape = tensor(op.result).rank, tensor(op.result).shape
        lead = op.name != "core.matmul" and rank > 1 and shape[0] == 1
        operands = []
        for value in op.operands:
            if value not in self.counts:
                operands.append(value)
            elif lead and tensor(value).rank == rank:
                operands.append(self.batched(value, before))
            else:
                operands.append(self._prefixed(value, before, rank - 1 if lead else rank))
        attrs: dict[str, AttrValue] = dict(op.attrs)
        if op.name == "core.broadcast_to":
            attrs["shape"] = (self.batch, *(shape[1:] if lead else shape))
        return self._insert(op, before, *operands, attrs=attrs)

    # -- insertion
    def _cast(self, op: Op, value: Value, before: Op) -> Value:
        dtype = tensor(op.result).dtype
        if tensor(value).dtype == dtype:
            return value
        return self._insert_as("core.cast", op, before, value, dtype=dtype)

    def _reshape(self, value: Value, shape: tuple[Size, ...], before: Op) -> Value:
        if tensor(value).shape == shape:
            return value
        return self._insert_as("core.reshape", before, before, value, shape=shape)

    def _insert(self, op: Op, before: Op, *operands: Value, attrs: dict[str, AttrValue]) -> Value:
        return self._insert_as(op.name, op, before, *operands, **attrs)

    def _insert_as(
        self, op_name: str, of: Op, before: Op, *operands: Value, **attrs: AttrValue
    ) -> Value:
        made = self.rewriter.insert(
            op_name, *operands, before=before, of=[of], hint=of.results[0].hint, **attrs
        )
        return made.result


def _is_count(value: Value) -> bool:
    """Whether a value is 0, 1, 2 … along its only long axis."""
    op = made_by(value, "core.iota", "core.reshape", "core.cast")
    while op is not None and op.name != "core.iota":
        op = made_by(op.operands[0], "core.iota", "core.reshape", "core.cast")
    return op is not None
