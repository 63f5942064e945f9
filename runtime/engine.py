"""The engine as most programs use it: load an artifact, generate, stream, chat."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from inferc.errors import RequestError
from inferc.runtime.artifact import Manifest, read_manifest
from inferc.runtime.chat import ChatTemplate, Message, load_chat_template
from inferc.runtime.checked import check_once
from inferc.runtime.checks import is_count, require
from inferc.runtime.engine_core import EngineCore
from inferc.runtime.events import Completion, CompletionBuilder, Event
from inferc.runtime.executors.base import Executor
from inferc.runtime.executors.choice import open_executor
from inferc.runtime.generation import load_defaults
from inferc.runtime.prompt import Prompt, split_prompts
from inferc.runtime.request import RequestId, SamplingParams
from inferc.runtime.scheduler_config import SchedulerConfig, StepOutput
from inferc.runtime.target_choice import first_device, parse_device, select_target
from inferc.runtime.tokenizer import TextTokenizer, load_tokenizer
from inferc.runtime.tuning import Choices, choices_here

_NO_PREFIX_CACHE = (
    "the model has recurrent states, which are kept for the end of a sequence only: a shared"
    " beginning is computed again"
)
_CPU_MIXED_PROMPT_TOKENS = 128
"""On a CPU a prompt row costs milliseconds, in a short step no more than in a long one. A quarter
of a step makes the longest waits of running answers a third as long; the time to the first token
grows by 3 to 12 % at the 90th percentile (`bench/serving_simulation.py`)."""


class Engine(EngineCore):
    r"""Serves one model to one caller; `AsyncEngine` serves many. Closes as a context manager.

    Options of a request are the fields of `SamplingParams`, by keyword, over the artifact's
    defaults: `engine.stream("Hello", temperature=0.7, stop="\n")`.
    """

    def __init__(
        self,
        executor: Executor,
        tokenizer: TextTokenizer,
        config: SchedulerConfig,
        *,
        defaults: SamplingParams | None = None,
        check: bool | None = None,
        chat_template: ChatTemplate | None = None,
        manifest: Manifest | None = None,
    ) -> None:
        super().__init__(executor, tokenizer, config, defaults=defaults, check=check)
        self.chat_template = chat_template
        self.manifest = manifest
        self._inboxes: dict[RequestId, deque[Event]] = {}

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        **options: Any,
    ) -> list[Completion]:
        """Complete one prompt or several together: `n` completions each, in order."""
        batch = split_prompts(prompts)
        resolved = self.sampling(params, **options)
        requests: list[RequestId] = []
        try:
            for prompt in batch:
                requests.append(self._open(prompt, resolved, priority))
            completions: list[Completion] = []
            for number, request in enumerate(requests):
                builder = CompletionBuilder(resolved.n, number)
                while not builder.done:
                    builder.add(self._next_event(request))
                completions += builder.build()
            return completions
        finally:
            for request in requests:
                self._abandon(request)

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        **options: Any,
    ) -> Iterator[Event]:
        """Events of one prompt as they come, from the first `next` on.

        Leaving the loop early cancels the request; a bad request is refused here already.
        """
        resolved = self.sampling(params, **options)
        return self._events(self.prompt_ids(prompt), resolved, priority)

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        template_variables: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> list[Completion]:
        """Answer a conversation: `n` completions."""
        prompt = self.chat_prompt(messages, **(template_variables or {}))
        return self.generate(prompt, params, **options)

    def chat_stream(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        template_variables: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Iterator[Event]:
        """Answer a conversation, as events."""
        prompt = self.chat_prompt(messages, **(template_variables or {}))
        return self.stream(prompt, params, **options)

    def chat_prompt(self, messages: Sequence[Message], **variables: Any) -> list[int]:
        """Ids of a conversation, by the model's own chat template."""
        if self.chat_template is None:
            raise RequestError(
                "The model has no chat template (it is a base model): use `generate` or `stream`"
                " with a prompt of your own."
            )
        return self.tokenizer.encode_rendered(self.chat_template.render(messages, **variables))

    # -- routing: each caller gets its own events, whoever runs the step --------------------

    def _open(self, prompt: Prompt, params: SamplingParams, priority: int) -> RequestId:
        request = self.add_request(prompt, params, priority=priority)
        self._inboxes[request] = deque()
        return request

    def _events(self, prompt: Prompt, params: SamplingParams, priority: int) -> Iterator[Event]:
        # Opened in here: a generator that is dropped before its first `next` never runs `finally`.
        request, samples = self._open(prompt, params, priority), params.n
        try:
            while samples:
                event = self._next_event(request)
                samples -= event.finish_reason is not None
                yield event
        finally:
            self._abandon(request)

    def _next_event(self, request: RequestId) -> Event:
        inbox = self._inboxes[request]
        while not inbox:
            # Requests of `add_request` have no inbox; the next `step` returns their events.
            self._undelivered = self.step()
        return inbox.popleft()

    def _deliver(self, outputs: list[StepOutput]) -> list[Event]:
        """Events for open streams go to their inboxes, all others to the caller of `step`."""
        others: list[Event] = []
        for event in super()._deliver(outputs):
            self._inboxes.get(event.request, others).append(event)
        return others

    def _abandon(self, request: RequestId) -> None:
        """Forget a request, finished or not."""
        self.cancel(request)
        self._undelivered = [event for event in self._undelivered if event.request != request]
        self._inboxes.pop(request, None)


def load(
    path: Path | str,
    *,
    device: str | None = None,
    threads: int | None = None,
    kv_budget_bytes: int | None = None,
    check: bool = True,
    prefix_cache: bool = True,
    chunk_tokens: int | None = None,
    tuned: bool = True,
) -> Engine:
    """Load an artifact for this machine.

    Args:
        path: The artifact's folder.
        device: `cpu`, `cuda` or `cuda:N`; the artifact must have been compiled for it. By default
            the kind of its first target.
        threads: Worker threads; by default one for each physical core this process may use.
        kv_budget_bytes: Memory for KV pages; by default room for one full context or 16,384
            tokens, at most a quarter of the memory; it becomes resident as pages are used. On a
            GPU by default room for all sequences, at most 0.9 of what the model leaves free.
        check: Compare every file with its digest first, unless these very files have been compared
            before on this machine.
        prefix_cache: Reuse the pages of prompts with the same beginning.
        chunk_tokens: Most tokens of one prompt in one step; fewer keep running answers smoother.
        tuned: On the CPU: where `threads` or `chunk_tokens` are None, take what `inferc tune` has
            measured on this machine, if it has.
    """
    for name, value in (("threads", threads), ("chunk_tokens", chunk_tokens)):
        require(name, value, "None or an integer of at least 1", value is None or is_count(value))
    folder = Path(path)
    manifest = read_manifest(folder)
    place = parse_device(first_device(manifest) if device is None else device)
    select_target(manifest, place.kind)  # refuses a foreign one before its gigabytes are read
    if check:
        check_once(folder, manifest)
    tokenizer = load_tokenizer(folder, manifest)
    tuning = choices_here(folder, manifest) if tuned and place.kind == "cpu" else Choices()
    executor = open_executor(
        folder, manifest, place, threads or tuning.threads, kv_budget_bytes, tuning.pool
    )
    limits = manifest.limits
    off = _NO_PREFIX_CACHE if prefix_cache and manifest.states else None
    config = SchedulerConfig(
        limits.step_tokens,
        limits.sequences,
        limits.context_tokens,
        chunk_tokens or tuning.chunk_tokens,
        prefix_cache and off is None,
        off,
        _CPU_MIXED_PROMPT_TOKENS if place.kind == "cpu" else None,
    )
    return Engine(
        executor,
        tokenizer,
        config,
        defaults=load_defaults(folder),
        chat_template=load_chat_template(folder, tokenizer),
        manifest=manifest,
    )
