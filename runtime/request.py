"""What is asked of the engine, and the state of one sequence while it is served."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NewType

from inferc.errors import RequestError
from inferc.runtime.block_manager import BlockId
from inferc.runtime.checks import is_count, is_integer, is_number, require

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
            if options.get(name, ()) is None:
                options[name] = ()
            elif isinstance(options.get(name), Iterable):
                options[name] = tuple(options[name])
        changed = replace(self, **options)
        changed.validate()
        return changed

    def validate(self) -> None:
        """Refuse values outside their range, naming the field, the range and the value."""
        for name, expected, holds in _FIELDS:
            value = getattr(self, name)
            require(name, value, expected, holds(value))


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
    state_slot: int | None = None
    """Where the recurrent states are; None while waiting."""

    @property
    def remaining_tokens(self) -> int:
        """Known tokens that are not in the cache yet; 1 while decoding."""
        return len(self.token_ids) - self.computed_tokens

    @property
    def urgency(self) -> tuple[int, int]:
        """Sort key: higher priority first, then who came first."""
        return (-self.priority, self.arrival)


def _is_bias(bias: object) -> bool:
    return is_number(bias) and (bias == -math.inf or abs(bias) <= _LARGEST_BIAS)


# What a field must be. The bounds keep sampling finite whatever the model's logits are.
_LARGEST_BIAS = 1e30
_FIELDS: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("max_tokens", "an integer of at least 1", is_count),
    ("temperature", "0 (greedy) or more", lambda v: is_number(v) and 0 <= v < math.inf),
    ("top_k", "None or an integer of at least 1", lambda v: v is None or is_count(v)),
    ("top_p", "above 0, at most 1", lambda v: is_number(v) and 0 < v <= 1),
    ("min_p", "0 to 1", lambda v: is_number(v) and 0 <= v <= 1),
    ("repetition_penalty", "0.001 to 1000", lambda v: is_number(v) and 0.001 <= v <= 1000),
    ("presence_penalty", "-1000 to 1000", lambda v: is_number(v) and -1000 <= v <= 1000),
    ("frequency_penalty", "-1000 to 1000", lambda v: is_number(v) and -1000 <= v <= 1000),
    (
        "logit_bias",
        f"ids of tokens with numbers up to {_LARGEST_BIAS:.0e}, or -inf to forbid",
        lambda v: (
            isinstance(v, Mapping) and all(map(is_integer, v)) and all(map(_is_bias, v.values()))
        ),
    ),
    ("seed", "None or an integer", lambda v: v is None or is_integer(v)),
    ("n", "an integer of at least 1", is_count),
    (
        "stop",
        "a tuple of non-empty strings",
        lambda v: isinstance(v, tuple) and all(isinstance(text, str) and text for text in v),
    ),
    (
        "stop_token_ids",
        "a tuple of token ids",
        lambda v: isinstance(v, tuple) and all(map(is_integer, v)),
    ),
    ("ignore_eos", "True or False", lambda v: isinstance(v, bool)),
    (
        "logprobs",
        "None or an integer of at least 0",
        lambda v: v is None or (is_integer(v) and v >= 0),
    ),
    ("skip_special_tokens", "True or False", lambda v: isinstance(v, bool)),
)
