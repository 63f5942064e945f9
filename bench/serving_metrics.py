"""From times of tokens to percentiles and goodput."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class Answer:
    """What one request got; all times in seconds since the start of the run.

    Attributes:
        arrival_s: When it was due, not when it was sent: a late client is the run's fault.
        token_times_s: When the client had each token.
        error: Why it failed.
    """

    arrival_s: float
    prompt_tokens: int
    token_times_s: tuple[float, ...]
    error: str | None = None

    @property
    def ttft_s(self) -> float:
        """From arrival to the first token."""
        return self.token_times_s[0] - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time of a token after the first; None for an answer of one token."""
        later = len(self.token_times_s) - 1
        if later < 1:
            return None
        return (self.token_times_s[-1] - self.token_times_s[0]) / later

    @property
    def longest_gap_s(self) -> float | None:
        """The longest wait between two tokens: what a reader feels as a stall."""
        gaps = zip(self.token_times_s, self.token_times_s[1:], strict=False)
        return max((b - a for a, b in gaps), default=None)


@dataclass(frozen=True)
class Objective:
    """What a request must keep to count: both, as multiples of the unloaded medians."""

    ttft_s: float
    tpot_s: float

    def met(self, answer: Answer) -> bool:
        """Failed requests never meet it."""
        if answer.error is not None or not answer.token_times_s:
            return False
        tpot = answer.tpot_s
        return answer.ttft_s <= self.ttft_s and (tpot is None or tpot <= self.tpot_s)


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of all values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def summary(answers: Sequence[Answer], objective: Objective | None) -> dict[str, Any]:
    """Figures of a run: rates count from its start to the last token."""
    good = [a for a in answers if a.error is None and a.token_times_s]
    seconds = max((a.token_times_s[-1] for a in good), default=0.0)
    new = sum(len(a.token_times_s) for a in good)
    prompts = sum(a.prompt_tokens for a in good)
    row: dict[str, Any] = {
        "requests": len(answers),
        "failed": len(answers) - len(good),
        "seconds": round(seconds, 2),
        "requests_per_s": _rate(len(good), seconds),
        "new_tokens_per_s": _rate(new, seconds),
        "tokens_per_s": _rate(new + prompts, seconds),
        "ttft_s": _percentiles([a.ttft_s for a in good]),
        "tpot_s": _percentiles([a.tpot_s for a in good if a.tpot_s is not None]),
        "longest_gap_s": _percentiles(
            [a.longest_gap_s for a in good if a.longest_gap_s is not None]
        ),
        "errors": sorted({a.error for a in answers if a.error is not None}),
    }
    if objective is not None:
        met = sum(map(objective.met, answers))
        row["within_objective"] = met
        row["goodput_per_s"] = _rate(met, seconds)
    return row


def _rate(count: int, seconds: float) -> float:
    return round(count / seconds, 3) if seconds else 0.0


def _percentiles(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {f"p{p}": round(percentile(values, p), 4) for p in PERCENTILES}
