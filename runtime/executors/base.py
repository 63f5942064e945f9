"""What the engine asks of an executor."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from inferc.runtime.plan import Plan

Logits = npt.NDArray[np.float32]


class Executor(Protocol):
    """Runs plans over KV pages that it owns."""

    @property
    def total_blocks(self) -> int:
        """Pages the executor has."""
        ...

    @property
    def page_tokens(self) -> int:
        """Tokens of a page."""
        ...

    @property
    def vocab_size(self) -> int:
        """Columns of the logits, padding included."""
        ...

    def run(self, plan: Plan) -> Logits:
        """Logits of the rows that the plan wants, in its order; valid until the next call."""
        ...

    def close(self) -> None:
        """Give back threads and memory; safe to call twice."""
        ...
