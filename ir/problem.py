"""What the verifier reports: a broken rule, and the op that breaks it among its neighbours."""

from __future__ import annotations

from dataclasses import dataclass

from inferc.errors import InfercError
from inferc.ir.core import Func, Op
from inferc.ir.location import DerivedLoc
from inferc.ir.text import format_loc, print_ops

NEIGHBOURS = 5


@dataclass(frozen=True)
class Problem:
    """A broken rule: its name, what was expected and found, and where."""

    rule: str
    message: str
    func: Func
    op: Op | None = None

    def __str__(self) -> str:
        lines = [f"{self.rule}: {self.message}", f"in @{self.func.name}"]
        if self.op is not None:
            lines[-1] += f", at {format_loc(self.op.loc)}"
            if isinstance(self.op.loc, DerivedLoc):
                lines[-1] += f", last touched by pass {self.op.loc.pass_name}"
            lines += print_ops(self.func, around=self.op, count=NEIGHBOURS)
        return "\n".join(lines)


class VerifyError(InfercError):
    """The module breaks rules of the IR. `problems` has all of them."""

    def __init__(self, problems: list[Problem], hint: str = "") -> None:
        self.problems = problems
        more = f"\n… and {len(problems) - 1} more" if len(problems) > 1 else ""
        super().__init__(f"{problems[0]}{more}" + (f"\n{hint}" if hint else ""))
