"""What export demands of the sizes of a model, and whether it holds for all of them.

Export guards every comparison that it cannot decide. Some are true for all lengths (an expression
that is not simplified), one excludes the longest length only, and those of a Python loop over the
sequence hold for the traced length alone. Runs in the capture process.
"""

from __future__ import annotations

import ast
import re

import sympy

_BATCHES = (1, 2, 3, 1024)
_SIZE = re.compile(r"L\['\w+'\]\.size\(\)\[(\d)\]")
_NAMES = frozenset({"S", "B", "min", "max"})


def guards_of(message: str) -> list[str]:
    """The guards in the text of a ConstraintViolationError, in terms of B and S."""
    guards = re.findall(r"generated guard (.*?)\.?(?:\n|$)", message)
    return [_SIZE.sub(lambda m: "BS"[int(m[1])], guard) for guard in guards]


def is_specialised(message: str) -> bool:
    """Whether a size became a number."""
    return "specialized it" in message


def always_true(guards: list[str], context_tokens: int) -> bool:
    """Whether the guards hold for every length up to the context, and some sizes of the batch."""
    return bool(guards) and all(_holds(guard, context_tokens) for guard in guards)


def _holds(guard: str, context_tokens: int) -> bool:
    try:
        tree = ast.parse(guard, mode="eval")
    except SyntaxError:
        return False
    if {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} - _NAMES:
        return False
    code, safe = compile(tree, "guard", "eval"), {"__builtins__": {}, "min": min, "max": max}
    return all(
        eval(code, safe, {"S": length, "B": batch})
        for length in range(1, context_tokens + 1)
        for batch in _BATCHES
    )


def excludes_longest(guards: list[str], context_tokens: int) -> bool:
    """Whether all that stands against a graph for all lengths is the longest length itself."""
    return context_tokens > 1 and always_true(guards, context_tokens - 1)


def holds(guard: sympy.Basic, length: sympy.Symbol, longest: int) -> bool:
    """Whether a guard on the length alone holds for a few short and the longest lengths."""
    if guard.free_symbols != {length}:
        return True
    lengths = {*range(1, 18), 64, 65, longest - 1, longest}
    return all(guard.subs(length, n) != sympy.false for n in lengths if 1 <= n <= longest)
