"""Limits, counts and results of the scheduler, as plain data."""

from dataclasses import dataclass

from inferc.runtime.request import FinishReason, Sampled, SequenceId


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits of a step, from the artifact, and policy."""

    step_tokens: int
    sequences: int
    context_tokens: int
    chunk_tokens: int | None = None
    """Most tokens of one sequence in one step; None: no limit but `step_tokens`."""
    prefix_cache: bool = True
    prefix_cache_off: str | None = None
    """Why the prefix cache is off although it was not forbidden; shown with the counts."""
    mixed_prompt_tokens: int | None = None
    """Most prompt tokens of all sequences in a step in which others decode: how long a running
    answer may wait for its next token. None: no limit but `step_tokens`."""

    @property
    def running_limit(self) -> int:
        """Sequences that may run at once; each is sure of a row in every step."""
        return min(self.sequences, self.step_tokens)


@dataclass
class SchedulerStats:
    """Counts since the engine was made."""

    steps: int = 0
    tokens: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefix_cache_off: str | None = None


@dataclass(frozen=True, slots=True)
class StepOutput:
    """A token that `commit` accepted; `finish_reason` tells whether it was the last."""

    sequence: SequenceId
    sampled: Sampled
    finish_reason: FinishReason | None
