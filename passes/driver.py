"""Applies local patterns until none fires: one worklist, checks and bookkeeping in one place.

A pattern is a function from a root op to the value that stands for its result. The driver inserts,
replaces, erases what died, visits what may match next, and records hits, refusals with reasons, and
source modules that no op stands for any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from inferc.ir.card import Attrs, AttrValue
from inferc.ir.core import Eliminated, Func, Op, Value
from inferc.ir.rewrite import Rewriter
from inferc.passes.base import PassContext

Match = Callable[[Op, "Edit"], Value | None]
VISITS_PER_OP = 200  # far above what terminating patterns need; a loop is reported, not run forever


class PatternLoop(RuntimeError):
    """Patterns keep undoing each other; the message names the last that fired."""


@dataclass(frozen=True)
class Pattern:
    """A local rewrite: its name in the log, the ops it may start from, and the matcher.

    The matcher returns a value of the type of the root's only result, or None to leave it alone.
    """

    name: str
    roots: frozenset[str]
    match: Match


def pattern(*roots: str) -> Callable[[Match], Pattern]:
    """Declare a matcher; the pattern is named after the function."""

    def declare(match: Match) -> Pattern:
        return Pattern(match.__name__.strip("_").replace("_", "-"), frozenset(roots), match)

    return declare


@dataclass
class Edit:
    """What a matcher may do: insert ops before the root, note matched ops, refuse with a reason."""

    func: Func
    rewriter: Rewriter
    root: Op
    pattern: str = ""
    interior: list[Op] = field(default_factory=list)
    inserted: list[Op] = field(default_factory=list)
    refused: dict[tuple[str, int], tuple[str, Op, str]] = field(default_factory=dict)
    _weights: dict[Value, bool] = field(default_factory=dict)

    def begin(self, root: Op, name: str) -> None:
        """Start a match."""
        self.root, self.pattern = root, name
        self.interior, self.inserted = [], []

    def covers(self, *ops: Op | None) -> None:
        """Note ops that the new ops stand for, besides the root: their locations are kept."""
        self.interior += [op for op in ops if op is not None]

    def refuse(self, reason: str) -> None:
        """Note why the pattern, though it looked right, is not applied here."""
        self.refused.setdefault((self.pattern, id(self.root)), (self.pattern, self.root, reason))

    def add(
        self,
        op_name: str,
        *operands: Value,
        attrs: Attrs,
        before: Op | None = None,
        of: Sequence[Op] | None = None,
        hint: str | Sequence[str] = "",
    ) -> Op:
        """Insert an op before the root (or an earlier op) that stands for what has been matched."""
        of = of or [*(op for op in self.interior if op is not self.root), self.root]
        made = self.rewriter.insert(
            op_name, *operands, before=before or self.root, of=of, hint=hint or (), **dict(attrs)
        )
        self.inserted.append(made)
        return made

    def op(self, op_name: str, *operands: Value, hint: str = "", **attrs: AttrValue) -> Value:
        """Like `add`, for an op with one result: returns the result."""
        return self.add(op_name, *operands, attrs=attrs, hint=hint).result

    def like(self, op: Op, *operands: Value, attrs: Attrs | None = None) -> Value:
        """The result of an op like this one with other operands, and if given other attributes."""
        return self.add(op.name, *operands, attrs=op.attrs if attrs is None else attrs).result

    def is_weight(self, value: Value) -> bool:
        """Whether the value depends on parameters and constants only."""
        stack = [value]
        while stack:
            at = stack[-1]
            if at.producer is None or at.producer.card.stateful:
                self._weights[at] = False
            missing = [] if at in self._weights else self._unknown(at)
            if missing:
                stack.append(missing[0])
                continue
            stack.pop()
        return self._weights[value]

    def _unknown(self, value: Value) -> list[Value]:
        """Operands still to be looked at; settles the value when there are none."""
        assert value.producer is not None
        operands = value.producer.operands
        if any(self._weights.get(v) is False for v in operands):
            self._weights[value] = False
            return []
        missing = [v for v in operands if v not in self._weights]
        if not missing:
            self._weights[value] = True
        return missing


def has_one_use(value: Value, func: Func) -> bool:
    """Whether exactly one operand slot reads the value, and the function does not return it."""
    return len(value.uses) == 1 and not func.is_result(value)


def apply_patterns(func: Func, context: PassContext, patterns: Sequence[Pattern]) -> None:
    """Apply patterns to a function until none fires. Raises PatternLoop if that does not end."""
    if func.ops:
        rewriter = context.rewriter(func)
        with log_lost_modules(func, context, "folded away"):
            _Worklist(func, context, rewriter, patterns).run()


class _Worklist:
    def __init__(
        self, func: Func, context: PassContext, rewriter: Rewriter, patterns: Sequence[Pattern]
    ) -> None:
        self.func, self.context, self.rewriter = func, context, rewriter
        self.by_root: dict[str, list[Pattern]] = {}
        for item in patterns:
            for root in item.roots:
                self.by_root.setdefault(root, []).append(item)
        self.queue: deque[Op] = deque()
        self.queued: set[Op] = set()
        self.erased: set[Op] = set()
        self.fired: deque[str] = deque(maxlen=10)
        self.edit = Edit(func, rewriter, func.ops[0])

    def run(self) -> None:
        self.visit(self.func.ops)
        budget = VISITS_PER_OP * (len(self.queue) + 10)
        try:
            while self.queue:
                budget -= 1
                if budget < 0:
                    raise PatternLoop(
                        f"{self.context.pass_name} on @{self.func.name} does not come to an end; "
                        f"last patterns: {', '.join(self.fired)}"
                    )
                op = self.queue.popleft()
                self.queued.discard(op)
                self.try_patterns(op)
        finally:
            for name, op, reason in self.edit.refused.values():
                if op not in self.erased:
                    self.context.refuse(name, op, reason)

    def visit(self, ops: Iterable[Op]) -> None:
        for op in ops:
            if op.name in self.by_root and op not in self.queued and op not in self.erased:
                self.queue.append(op)
                self.queued.add(op)

    def visit_first(self, ops: Sequence[Op]) -> None:
        """Visit new ops before what reads them: patterns then find their operands simplified."""
        for op in reversed(ops):
            if op.name in self.by_root and op not in self.queued:
                self.queue.appendleft(op)
                self.queued.add(op)

    def try_patterns(self, op: Op) -> None:
        for item in self.by_root[op.name]:
            if op in self.erased:
                return
            self.edit.begin(op, item.name)
            value = item.match(op, self.edit)
            if value is not None:
                self.replace(op, value, item.name)
                return

    def replace(self, op: Op, value: Value, name: str) -> None:
        self.fired.append(name)
        read = op.operands
        self.rewriter.replace(op, value)
        self.erased.add(op)
        self.context.hit(name)
        self.visit(value.users)
        self.visit_first(self.edit.inserted)
        self.clean([v.producer for v in read if v.producer is not None])
        self.clean(self.edit.inserted)
        self.visit(user for v in read if len(v.uses) == 1 for user in v.users)

    def clean(self, candidates: Iterable[Op]) -> None:
        """Erase ops that nobody reads any more, upwards from the candidates."""
        stack = list(candidates)
        while stack:
            op = stack.pop()
            if op in self.erased or op.card.stateful or op.name == "param":
                continue
            if any(r.uses or self.func.is_result(r) for r in op.results):
                continue
            operands = op.operands
            self.rewriter.erase(op)
            self.erased.add(op)
            for value in operands:
                if value.producer is not None:
                    stack.append(value.producer)
                if len(value.uses) == 1:
                    self.visit(value.users)


@contextmanager
def log_lost_modules(func: Func, context: PassContext, reason: str) -> Iterator[None]:
    """Log source modules that had an op in the function before, and have none after."""
    before = _modules(func)
    try:
        yield
    finally:
        for path in sorted(before - _modules(func)):
            entry = Eliminated(path, context.pass_name, reason)
            if entry not in context.module.eliminated:
                context.module.eliminated.append(entry)


def _modules(func: Func) -> set[str]:
    return {root.path for op in func.ops for root in op.loc.roots()}
