"""How the workers of a step wait, and where they run."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PoolChoice:
    """How the workers of a step wait and where they run; None: the library's default.

    Attributes:
        spin_us: how long a worker waits busily before it sleeps.
        pinned: whether each worker stays on a processor of its own, the caller during a step.
    """

    spin_us: int | None = None
    pinned: bool | None = None


DEFAULT_POOL = PoolChoice()
