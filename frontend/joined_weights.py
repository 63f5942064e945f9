"""Parameters that are joined from several stored tensors, joined only if somebody reads the whole.

Models hold gate and up of their experts as one parameter, files as two, often two an expert. The
graph takes the parameter apart again, and then the pieces need never be put together.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferc.ir.core import Builder, Op, Value
from inferc.ir.location import Location
from inferc.ir.types import TensorType


@dataclass(frozen=True)
class JoinedWeight:
    """Pieces of one type along axis 1 of the parameter.

    Attributes:
        pieces: `[rows, ..]` each, entry by entry; without a stack `[E, rows, ..]` each.
        stack: Entries along the first axis of the parameter that are pieces of their own; 0 if the
            pieces have the axis.
    """

    pieces: tuple[Value, ...]
    stack: int

    def slice(self, op: Op) -> JoinedWeight | None:
        """What a `core.slice` of the parameter leaves; None if it cuts a piece or another axis."""
        if op.name != "core.slice" or op.attrs["axis"] != 1 or op.attrs["step"] != 1:
            return None
        ends = self._ends()
        if op.attrs["start"] not in ends or op.attrs["stop"] not in ends:
            return None
        low, high = (ends.index(op.attrs[name]) for name in ("start", "stop"))  # type: ignore[arg-type]
        each, entries = len(ends) - 1, max(self.stack, 1)
        kept = [self.pieces[e * each + i] for e in range(entries) for i in range(low, high)]
        return JoinedWeight(tuple(kept), self.stack)

    def _ends(self) -> list[int]:
        """Where the pieces of one entry begin and end along axis 1."""
        one = self.pieces[: len(self.pieces) // max(self.stack, 1)]
        ends = [0]
        for piece in one:
            size = _tensor(piece).shape[0 if self.stack else 1]
            assert isinstance(size, int)
            ends.append(ends[-1] + size)
        return ends

    def join(self, builder: Builder, loc: Location) -> Value:
        """The parameter as one value."""
        if not self.stack:
            if len(self.pieces) == 1:
                return self.pieces[0]
            return builder.op("core.concat", *self.pieces, axis=1, loc=loc)
        rows = self.pieces[0]
        if len(self.pieces) > 1:
            rows = builder.op("core.concat", *self.pieces, axis=0, loc=loc)
        shape = (self.stack, self._ends()[-1], *_tensor(rows).shape[1:])
        return builder.op("core.reshape", rows, shape=shape, loc=loc)


def _tensor(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type
