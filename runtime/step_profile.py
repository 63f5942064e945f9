"""When the kernel calls of steps began and ended, as the executor measures them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Spans = npt.NDArray[np.int64]


@dataclass(frozen=True)
class StepProfile:
    """One step of the compiled library. Times are nanoseconds of `time.monotonic_ns`.

    Attributes:
        decode: whether it was the decode step, else the prefill step.
        tokens: rows of the step.
        sequences: sequences of the step.
        logit_rows: rows that logits were wanted of.
        context_tokens: mean context of the sequences after the step.
        begin_ns: when the library was called.
        end_ns: when it returned.
        spans_ns: `[worker, call, begin and end]`, the calls in the order of the report's kernels.
    """

    decode: bool
    tokens: int
    sequences: int
    logit_rows: int
    context_tokens: int
    begin_ns: int
    end_ns: int
    spans_ns: Spans


Listener = Callable[[StepProfile], None]
"""Gets every step that is run while it listens."""
