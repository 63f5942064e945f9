"""What goes with a weight of plain codes: a scale for each row, an order of its columns.

```
%y = core.linear(%x, %w, %b)   ->   %t = core.take(%x, %order)     columns as the codes have them
                                    %p = core.linear(%t, %codes)
                                    %y = %p * %scale + %b
```
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inferc.errors import CompileError
from inferc.ir.core import Builder, Op, Value
from inferc.ir.location import Location


@dataclass(frozen=True)
class Sides:
    """Scale f32[N] of the rows and order i32[K] of the columns; None for neither."""

    scale: Value | None = None
    order: Value | None = None

    def __bool__(self) -> bool:
        return self.scale is not None or self.order is not None

    def rows(self, builder: Builder, op: Op) -> Sides:
        """Those of the rows that a `core.slice` along axis 0 leaves."""
        if self.scale is None:
            return self
        return Sides(builder.op("core.slice", self.scale, loc=op.loc, **op.attrs), self.order)

    def linear(
        self, builder: Builder, op: Op, x: Value, weight: Value, bias: Value | None
    ) -> Value:
        """The product that `op` is."""
        if self.order is not None:
            x = builder.op("core.take", x, self.order, loc=op.loc)
        if self.scale is None:
            rest = () if bias is None else (bias,)
            return builder.op("core.linear", x, weight, *rest, loc=op.loc, hint=op.result.hint)
        y = builder.op("core.linear", x, weight, loc=op.loc, hint=op.result.hint)
        y = builder.op("core.mul", y, self.scale, loc=op.loc, hint=op.result.hint)
        return y if bias is None else builder.op("core.add", y, bias, loc=op.loc)

    def applied(self, builder: Builder, name: str, values: Value, loc: Location) -> Value:
        """The weight itself from its f32 codes [N, K]. Raises CompileError if it has an order."""
        if self.order is not None:
            raise CompileError(
                f"{name} is stored with its columns in another order (act-order), and an operation "
                f"other than a linear layer reads it (at {loc}). Compile a checkpoint without "
                "desc_act, or the unquantised model."
            )
        if self.scale is None:
            return values
        rows = self.scale.type.shape[0]  # type: ignore[union-attr]
        column = builder.op("core.reshape", self.scale, shape=(rows, 1), loc=loc)
        return builder.op("core.mul", values, column, loc=loc)


def joined(builder: Builder, name: str, parts: Sequence[Sides], loc: Location) -> Sides:
    """Those of weights one below the other. Raises CompileError if they do not go together."""
    first = parts[0]
    kinds = {(s.scale is None, s.order) for s in parts}
    if len(kinds) > 1:
        raise CompileError(
            f"{name} is joined from weights that are quantised in different ways or have their "
            "columns in different orders (act-order). Compile a checkpoint without desc_act, or "
            "the unquantised model."
        )
    if first.scale is None or len(parts) == 1:
        return first
    scales = [s.scale for s in parts if s.scale is not None]
    return Sides(builder.op("core.concat", *scales, axis=0, loc=loc), first.order)
