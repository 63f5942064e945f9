"""The driver of the fusion passes: checks that a set of ops may become one group, and makes it.

A pattern only proposes ops. The driver checks what makes a fusion legal: the set is convex (no
value leaves it and comes back), there is a place where all operands exist and no reader has run,
and no effect is crossed (a cache version that a member writes has no other reader). Values that are
read outside become results of the group; all others are interior by construction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from inferc.ir.core import Func, Op, Value
from inferc.ir.cost import op_cost
from inferc.ir.dims import Size
from inferc.ir.ops.elementwise import ELEMENTWISE
from inferc.ir.rewrite import Rewriter, outline
from inferc.ir.types import TensorType
from inferc.passes.base import PassContext

VIEWS = frozenset({"param", "core.reshape", "core.constant"})
POINTWISE = ELEMENTWISE | {"nn.glu"}
NORMS = frozenset({"nn.rms_norm", "nn.layer_norm"})
_GROWTH = 24  # most ops of a grown group: more than any pattern needs, bounds the search


def bytes_moved(ops: Iterable[Op]) -> Size:
    """Bytes that ops move when each is a kernel of its own."""
    total: Size = 0
    for op in ops:
        total = total + op_cost(op).bytes_moved
    return total


def value_bytes(value: Value) -> Size:
    """Bytes of a tensor; a cache counts where it is read and written, not here."""
    return value.type.nbytes if isinstance(value.type, TensorType) else 0


@dataclass
class Fuser:
    """Makes groups in one function. Positions of ops are kept, so that checks stay local."""

    func: Func
    rewriter: Rewriter
    context: PassContext
    position: dict[Op, int] = field(init=False)

    def __post_init__(self) -> None:
        self.position = {op: i for i, op in enumerate(self.func.ops)}

    def ops(self) -> list[Op]:
        """The ops that are in no group yet and are no views, in order."""
        return [op for op in self.func.ops if op.name not in VIEWS and op.body is None]

    def outputs(self, members: set[Op]) -> list[Value]:
        """Results that somebody outside reads, in order."""
        ordered = sorted(members, key=self.position.__getitem__)
        return [
            r for op in ordered for r in op.results
            if self.func.is_result(r) or any(u not in members for u in r.users)
        ]  # fmt: skip

    # -- legality
    def refusal(self, members: set[Op]) -> str | None:
        """Why the ops cannot be one group; None if they can."""
        if any(op.body is not None for op in members):
            return "one of the ops is in a group already"
        for op in members:
            if op.card.stateful and len(op.operands[0].uses) > 1:
                return "an effect is crossed: the cache is read elsewhere before it is written"
        if not self.convex(members):
            return "a value would leave the group and come back"
        if self.anchor(members) is None:
            return "a reader of a result comes before an operand is known"
        return None

    def convex(self, members: set[Op]) -> bool:
        """Whether no path between two members runs through another op."""
        last = max(self.position[op] for op in members)
        seen: set[Op] = set()
        stack = [u for op in members for r in op.results for u in r.users if u not in members]
        while stack:
            op = stack.pop()
            if op in seen or self.position[op] > last:
                continue
            seen.add(op)
            for user in (u for r in op.results for u in r.users):
                if user in members:
                    return False
                stack.append(user)
        return True

    def anchor(self, members: set[Op]) -> Op | None:
        """The op before which the group may stand: its last member, or its first reader."""
        last = max(members, key=self.position.__getitem__)
        readers = [u for op in members for r in op.results for u in r.users if u not in members]
        first = min(readers, key=self.position.__getitem__, default=None)
        if first is None or self.position[first] > self.position[last]:
            return last
        operands = (v.producer for op in members for v in op.operands if v.producer is not None)
        known = max((self.position[p] for p in operands if p not in members), default=-1)
        return first if known < self.position[first] else None

    # -- growing
    def grow(
        self,
        roots: Iterable[Op],
        accepts: Callable[[Op], bool],
        *,
        most_outputs: int = 1,
    ) -> set[Op]:
        """Add accepted readers while the set stays legal; the largest set with few enough outputs.

        Sets in between may have more outputs: x * sigmoid(x) closes only with the second op.
        """
        best = members = set(roots)
        while len(members) < _GROWTH:
            readers = {u for op in members for r in op.results for u in r.users} - members
            fitting = [u for u in readers if accepts(u) and self.refusal({*members, u}) is None]
            if not fitting:
                break
            members = {*members, min(fitting, key=self.position.__getitem__)}
            if len(self.outputs(members)) <= most_outputs:
                best = members
        return best

    # -- making
    def fuse(self, members: set[Op], kind: str, pattern: str) -> Op | None:
        """Make the group, or record why not."""
        ordered = sorted(members, key=self.position.__getitem__)
        reason = self.refusal(members)
        if reason is not None:
            self.context.refuse(pattern, ordered[-1], reason)
            return None
        self.rewriter.spend()
        outputs, anchor = self.outputs(members), self.anchor(members)
        assert anchor is not None
        before = bytes_moved(ordered)
        constants = _constants(ordered)
        operands, body = outline([*constants, *ordered], outputs, self.func.symbols)
        group = self.rewriter.insert_group(
            operands, body, before=anchor, of=ordered, hints=[v.hint for v in outputs], kind=kind
        )
        self.position[group] = self.position[anchor]
        for old, new in zip(outputs, group.results, strict=True):
            self.rewriter.replace_value(old, new)
        for op in [*reversed(ordered), *constants]:
            if not any(r.uses for r in op.results):
                self.rewriter.erase(op)
        self.context.hit(pattern, self.func, before - bytes_moved([group]))
        return group


def _constants(ops: list[Op]) -> list[Op]:
    """Constants that the ops read: they go into the body, a kernel has them compiled in."""
    producers = (v.producer for op in ops for v in op.operands)
    found = [p for p in producers if p is not None and p.name == "core.constant"]
    return [op for op in dict.fromkeys(found) if op not in ops]


def pointwise_like(root: Op) -> Callable[[Op], bool]:
    """Accepts element-wise ops whose result has the shape of the root's result."""
    shape = root.results[0].type.shape if isinstance(root.results[0].type, TensorType) else None

    def accepts(op: Op) -> bool:
        if op.name not in POINTWISE:
            return False
        type_ = op.result.type
        return isinstance(type_, TensorType) and type_.shape == shape

    return accepts


def sole_reader(value: Value, func: Func) -> Op | None:
    """The only op that reads a value; None if there are several or the function returns it."""
    users = value.users
    return users[0] if len(users) == 1 and not func.is_result(value) else None
