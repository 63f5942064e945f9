"""What the engine gives back: events while it generates, completions at the end."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from inferc.runtime.request import FinishReason, RequestId

TopLogprobs = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one completion; `cached_tokens` of the prompt came from the prefix cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Event:
    """One token of sample `index` of a request.

    `text` may be empty (inside a character, or where a stop string may begin) or belong to several
    tokens; all texts of a sample joined are its completion. The last event of a sample carries
    `finish_reason` and `usage`; that of a cancelled one has no token.
    """

    request: RequestId
    index: int
    text: str
    token: int | None = None
    logprob: float | None = None
    top_logprobs: TopLogprobs = ()
    finish_reason: FinishReason | None = None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """One finished sample: `index` of the request's `n`, for prompt number `prompt_index`."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    index: int = 0
    prompt_index: int = 0
    logprobs: tuple[float, ...] = ()
    """Of each token; empty unless asked for."""
    top_logprobs: tuple[TopLogprobs, ...] = ()


@dataclass
class CompletionBuilder:
    """Puts the events of one request together."""

    samples: int
    prompt_index: int = 0
    _events: dict[int, list[Event]] = field(default_factory=dict)
    _finished: int = 0

    @property
    def done(self) -> bool:
        """Whether every sample has ended."""
        return self._finished == self.samples

    def add(self, event: Event) -> None:
        """Take the next event."""
        self._events.setdefault(event.index, []).append(event)
        self._finished += event.finish_reason is not None

    def build(self) -> list[Completion]:
        """The completions in order of index; call when `done`."""
        return [self._complete(index, self._events[index]) for index in sorted(self._events)]

    def _complete(self, index: int, events: Iterable[Event]) -> Completion:
        *_, last = events
        assert last.finish_reason is not None and last.usage is not None
        with_token = [event for event in events if event.token is not None]
        scored = [event for event in with_token if event.logprob is not None]
        return Completion(
            text="".join(event.text for event in events),
            token_ids=tuple(event.token for event in with_token if event.token is not None),
            finish_reason=last.finish_reason,
            usage=last.usage,
            index=index,
            prompt_index=self.prompt_index,
            logprobs=tuple(event.logprob for event in scored if event.logprob is not None),
            top_logprobs=tuple(event.top_logprobs for event in scored),
        )
