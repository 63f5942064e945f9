"""Whether a model fits into a machine's memory, and how much context is left room for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inferc.report.machines import Machine
from inferc.report.model import Report


@dataclass(frozen=True)
class Fit:
    """The memory of one machine, shared out.

    Attributes:
        machine: its name.
        memory_bytes: all of it.
        fixed_bytes: weights, arena, and the recurrent states of as many sequences as may run.
        kv_tokens: tokens of all sequences together whose keys and values fit beside that; None if
            the model keeps none. 0 if the fixed part does not fit.
        machines: how many such machines hold the fixed part, whatever dividing it may add.
    """

    machine: str
    memory_bytes: int
    fixed_bytes: int
    kv_tokens: int | None
    machines: int

    @property
    def fits(self) -> bool:
        """Whether one machine holds the fixed part."""
        return self.machines == 1


def fit(report: Report, machine: Machine) -> Fit | None:
    """How the model of a report fits; None for a machine of unknown memory."""
    if machine.memory_bytes is None:
        return None
    fixed = fixed_bytes(report)
    page, tokens = report["kv"]["page_bytes"], report["kv"]["page_tokens"]
    rest = max(machine.memory_bytes - fixed, 0)
    left = rest // page * tokens if page else None
    machines = max(-(-fixed // machine.memory_bytes), 1)
    return Fit(machine.name, machine.memory_bytes, fixed, left, machines)


def fixed_bytes(report: Report) -> int:
    """Bytes that a running model takes whatever it is asked."""
    memory: Any = report["memory"]
    sequences = int(report["options"].get("sequences", 1))
    states = state_bytes(report) * sequences
    return int(memory["weights_bytes"]) + int(memory["arena_bytes"]) + states


def state_bytes(report: Report) -> int:
    """Bytes of the recurrent states of one sequence."""
    return sum(int(state["nbytes"]) for state in report.get("states", ()))
