"""What is asked of the engine, and the state of one sequence while it is served."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NewType

from inferc.errors import RequestError
from inferc.runtime.block_manager import BlockId

RequestId = NewType("RequestId", int)
SequenceId = NewType("SequenceId", int)
FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen and when a completion ends. The defaults are greedy decoding.

    Logits are changed in this order: logit_bias, penalties, temperature, top_k, top_p, min_p.
    `logprobs` are those of the model itself, before any of these; 0 asks for the chosen token's.
    `repetition_penalty` looks at prompt and output, the other penalties at the output only.
    A completion that reaches the context (or the KV budget) ends with the reason `length`.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    skip_special_tokens: bool = True

    def with_options(self, **options: Any) -> "SamplingParams":
        """A copy with some fields replaced; a lone stop string and lists are accepted."""
        known = {option.name for option in fields(self)}
        unknown = sorted(set(options) - known)
        if unknown:
            raise RequestError(
                f"Unknown sampling option {', '.join(unknown)}; known are"
                f" {', '.join(sorted(known))}."
            )
        if isinstance(options.get("stop"), str):
            options["stop"] = (options["stop"],)
        for name in ("stop", "stop_token_ids"):
            if name in options:
                options[name] = tuple(options[name] or ())
        changed = replace(self, **options)
        changed.validate()
        return changed

    def validate(self) -> None:
        """Refuse values outside their range, naming the field, the range and the value."""
        finite = math.isfinite
        _require("max_tokens", self.max_tokens, "at least 1", self.max_tokens >= 1)
        _require(
            "temperature",
            self.temperature,
            "0 (greedy) or more",
            finite(self.temperature) and self.temperature >= 0,
        )
        _require("top_k", self.top_k, "None or at least 1", self.top_k is None or self.top_k >= 1)
        _require("top_p", self.top_p, "above 0, at most 1", 0 < self.top_p <= 1)
        _require("min_p", self.min_p, "0 to 1", 0 <= self.min_p <= 1)
        penalty = self.repetition_penalty
        _require("repetition_penalty", penalty, "above 0", finite(penalty) and penalty > 0)
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _require(name, value, "a finite number", finite(value))
        _require("n", self.n, "at least 1", self.n >= 1)
        if self.logprobs is not None:
            _require("logprobs", self.logprobs, "None or 0 and above", self.logprobs >= 0)
        self._validate_collections()

    def _validate_collections(self) -> None:
        _require(
            "stop",
            self.stop,
            "a tuple of non-empty strings",
            isinstance(self.stop, tuple) and all(isinstance(s, str) and s for s in self.stop),
        )
        biases = self.logit_bias.values()
        usable = all(not math.isnan(bias) and bias != math.inf for bias in biases)
        _require("logit_bias", dict(self.logit_bias), "numbers, or -inf to forbid", usable)


@dataclass(frozen=True, slots=True)
class Sampled:
    """A sampled token; `top` holds (token, logprob) pairs, most likely first."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True, eq=False)
class Sequence:
    """One sequence being served; only the scheduler changes it.

    Token ranges, with P tokens a page:

        0          published·P        computed         computed+length        len(token_ids)
        |-- shareable --|-- cached, private --|-- this step's plan --|-- known, yet to run --|
        |------------------ pages in `blocks` cover at least this ---|
    """

    id: SequenceId
    prompt_tokens: int
    token_ids: list[int]
    max_length_tokens: int
    stop_ids: frozenset[int] = frozenset()
    priority: int = 0
    leader: SequenceId | None = None
    """A sequence with the same prompt: wait for its pages instead of computing them again."""
    arrival: int = 0
    computed_tokens: int = 0
    published_blocks: int = 0
    cached_tokens: int = 0
    """Tokens taken from the prefix cache at the first admission."""
    preemptions: int = 0
    blocks: tuple[BlockId, ...] = ()
    block_keys: list[bytes] = field(default_factory=list)

    @property
    def remaining_tokens(self) -> int:
        """Known tokens that are not in the cache yet; 1 while decoding."""
        return len(self.token_ids) - self.computed_tokens

    @property
    def urgency(self) -> tuple[int, int]:
        """Sort key: higher priority first, then who came first."""
        return (-self.priority, self.arrival)


def _require(name: str, value: object, expected: str, holds: bool) -> None:
    if not holds:
        raise RequestError(f"{name}: expected {expected}, found {value!r}.")
