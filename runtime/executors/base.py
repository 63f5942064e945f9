"""What the engine asks of an executor."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from inferc.runtime.plan import Plan
from inferc.runtime.request import Sampled
from inferc.runtime.sample_rows import SampleRows

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


@runtime_checkable
class GreedyExecutor(Executor, Protocol):
    """An executor that can find the most likely tokens where the logits are."""

    @property
    def finds_greedy(self) -> bool:
        """Whether it can."""
        ...

    def greedy(self, plan: Plan, end: int) -> Sequence[int]:
        """For each row that the plan wants, the lowest id of the largest logit of ids below `end`.

        -1 where one of these is NaN.
        """
        ...


@runtime_checkable
class SamplingExecutor(Executor, Protocol):
    """An executor that can choose the tokens where the logits are, so that only ids come back."""

    @property
    def samples(self) -> bool:
        """Whether it can, and is to."""
        ...

    def sample(self, plan: Plan, rows: SampleRows) -> Sequence[Sampled]:
        """A token for each row of logits that the plan wants, by its row of `rows`."""
        ...
