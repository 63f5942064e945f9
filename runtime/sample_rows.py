"""What sampling needs to know of each row of logits, as plain arrays: for sampling on a device.

Mirrors `codegen/include/inferc/cuda/sampling.h`, where the fields are explained.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

ROW = np.dtype(
    [
        *(
            (name, np.float64)
            for name in (
                "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty",
                "frequency_penalty",
            )
        ),
        *((name, np.uint64) for name in ("seed", "sample", "position")),
        *((name, np.int32) for name in ("top_k", "logprobs", "first_edit", "edits")),
    ]
)  # fmt: skip
"""`inferc_sample_row`."""
EDIT = np.dtype(
    [
        ("bias", np.float64),
        *((name, np.int32) for name in ("token", "count", "seen", "unused")),
    ]
)
"""`inferc_logit_edit`."""
SAMPLED = np.dtype([("token", np.int32), ("status", np.int32), ("logprob", np.float64)])
"""`inferc_sampled`."""
TOP = np.dtype([("token", np.int32), ("unused", np.int32), ("logprob", np.float64)])
"""`inferc_token_logprob`."""

Rows = npt.NDArray[Any]


@dataclass(frozen=True)
class SampleRows:
    """One row for each row of logits.

    Attributes:
        rows: of type ROW.
        edits: of type EDIT: logits that bias and penalties change, those of a row together.
        columns: one more than the largest id of a token.
        holes: ids below that are no tokens, i32; the same object at every step.
    """

    rows: Rows
    edits: Rows
    columns: int
    holes: npt.NDArray[np.int32]

    @property
    def most_logprobs(self) -> int:
        """Most tokens whose probabilities one of the rows wants."""
        return max(0, int(self.rows["logprobs"].max())) if len(self.rows) else 0
