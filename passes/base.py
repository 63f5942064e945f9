"""What a pass is: a frozen dataclass whose fields are its options, one file a pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from inferc.ir.core import Func, Module, Op
from inferc.ir.dims import Size
from inferc.ir.rewrite import Fuel, Rewriter


@dataclass(frozen=True)
class Refused:
    """A place where a pattern looked right but was not applied, and why."""

    pattern: str
    op: str
    module: str
    reason: str


@dataclass
class PassLog:
    """What one run of a pass did: counted hits, bytes saved a step, refusals, notes."""

    hits: dict[str, int] = field(default_factory=dict)
    bytes_saved: dict[str, Size] = field(default_factory=dict)  # by function: bytes a step
    refused: list[Refused] = field(default_factory=list)
    notes: dict[str, int] = field(default_factory=dict)  # choices in words, counted


@dataclass
class PassContext:
    """Handed to `Pass.run`: gives rewriters, collects the log."""

    module: Module
    pass_name: str
    fuel: Fuel = field(default_factory=Fuel)
    log: PassLog = field(default_factory=PassLog)

    def rewriter(self, func: Func) -> Rewriter:
        """The rewriter for a function; fuel is shared by all rewriters of the run."""
        return Rewriter(func, self.pass_name, fuel=self.fuel, module=self.module)

    def hit(self, pattern: str, func: Func | None = None, bytes_saved: Size = 0) -> None:
        """Count one application of a pattern, and the bytes a step it saves in `func`."""
        self.log.hits[pattern] = self.log.hits.get(pattern, 0) + 1
        if func is not None and not (isinstance(bytes_saved, int) and bytes_saved == 0):
            self.log.bytes_saved[func.name] = self.log.bytes_saved.get(func.name, 0) + bytes_saved

    def note(self, choice: str) -> None:
        """Record what was chosen, and on what grounds, where a hit alone does not say it."""
        self.log.notes[choice] = self.log.notes.get(choice, 0) + 1

    def refuse(self, pattern: str, op: Op, reason: str) -> None:
        """Record that a pattern was not applied at `op`."""
        roots = op.loc.roots()
        self.log.refused.append(Refused(pattern, op.name, roots[0].path if roots else "", reason))


class Pass:
    """Base of passes. The IR is valid before and after `run`, not necessarily in between.

    Class variables name facts (see `inferc.passes.facts`): `requires` must hold before, `ensures`
    holds after, `breaks` no longer holds after. The manager proves the order of a pipeline from
    them before it runs.
    """

    name: ClassVar[str]
    requires: ClassVar[frozenset[str]] = frozenset()
    ensures: ClassVar[frozenset[str]] = frozenset()
    breaks: ClassVar[frozenset[str]] = frozenset()

    def run(self, module: Module, context: PassContext) -> None:
        """Rewrite the module in place."""
        raise NotImplementedError
