"""Many callers, one engine: a worker thread owns the engine, asyncio callers talk to it."""

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from inferc.errors import InfercError
from inferc.runtime.chat import Message
from inferc.runtime.engine import Engine
from inferc.runtime.events import Completion, CompletionBuilder, Event
from inferc.runtime.prompt import Prompt, split_prompts
from inferc.runtime.request import RequestId, SamplingParams

T = TypeVar("T")


@dataclass(frozen=True)
class _Subscriber:
    """Where the events of a request go: a queue in the loop of its caller."""

    loop: asyncio.AbstractEventLoop
    events: asyncio.Queue[Event | BaseException]

    def put(self, item: Event | BaseException) -> bool:
        """Hand over from the worker; False when the caller's loop is gone."""
        try:
            self.loop.call_soon_threadsafe(self.events.put_nowait, item)
        except RuntimeError:
            return False
        return True


class AsyncEngine:
    """The interface of `Engine` for asyncio. The engine must not be used directly meanwhile.

    The worker takes commands between steps, so a request joins the running batch at the next one.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._commands: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._subscribers: dict[RequestId, _Subscriber] = {}
        self._gate = threading.Lock()
        self._end: BaseException | None = None
        """Why the worker takes no more commands; set under the gate, so that none is lost."""
        self._worker = threading.Thread(target=self._work, name="inferc-engine", daemon=True)
        self._worker.start()

    async def __aenter__(self) -> "AsyncEngine":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        **options: Any,
    ) -> list[Completion]:
        """Complete one prompt or several together: `n` completions each, in order."""
        resolved = self.engine.sampling(params, **options)
        batch = enumerate(split_prompts(prompts))
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._complete(number, prompt, resolved, priority))
                    for number, prompt in batch
                ]
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [completion for task in tasks for completion in task.result()]

    async def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        **options: Any,
    ) -> AsyncIterator[Event]:
        """Events of one prompt as they come. Leaving the loop or cancelling the task ends it."""
        resolved = self.engine.sampling(params, **options)
        subscriber = _Subscriber(asyncio.get_running_loop(), asyncio.Queue())
        opening = self._post(lambda: self._open(prompt, resolved, priority, subscriber))
        try:
            await asyncio.wrap_future(opening)
            samples = resolved.n
            while samples:
                item = await subscriber.events.get()
                if isinstance(item, BaseException):
                    raise item
                samples -= item.finish_reason is not None
                yield item
        finally:
            # Also when cancelled while opening: the worker has the id by the time it gets here.
            opening.add_done_callback(self._abandon)

    async def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        template_variables: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> list[Completion]:
        """Answer a conversation: `n` completions."""
        prompt = self.engine.chat_prompt(messages, **(template_variables or {}))
        return await self.generate(prompt, params, **options)

    def chat_stream(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        template_variables: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AsyncIterator[Event]:
        """Answer a conversation, as events."""
        prompt = self.engine.chat_prompt(messages, **(template_variables or {}))
        return self.stream(prompt, params, **options)

    async def cancel(self, request: RequestId) -> bool:
        """End a request (the id is in its events); its stream ends with `cancelled`."""
        return await asyncio.wrap_future(self._post(lambda: self.engine.cancel(request)))

    async def close(self) -> None:
        """Stop the worker and close the engine; open streams end with an error."""
        self._commands.put(None)
        await asyncio.to_thread(self._worker.join)
        self.engine.close()

    # -- for callers ------------------------------------------------------------------------

    async def _complete(
        self, number: int, prompt: Prompt, params: SamplingParams, priority: int
    ) -> list[Completion]:
        builder = CompletionBuilder(params.n, number)
        async for event in self.stream(prompt, params, priority=priority):
            builder.add(event)
        return builder.build()

    def _post(self, command: Callable[[], T]) -> "Future[T]":
        """Have the worker run `command`; its result or error comes through the future."""
        future: Future[T] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(command())
                except BaseException as error:  # for the caller, in whose thread it is raised
                    future.set_exception(error)

        with self._gate:
            if self._end is not None:
                raise InfercError(f"The engine takes no more requests: {self._end}")
            self._commands.put(run)
        return future

    def _abandon(self, opening: "Future[RequestId]") -> None:
        if not opening.cancelled() and opening.exception() is None:
            request = opening.result()
            self._commands.put(lambda: self._drop(request))

    # -- in the worker ----------------------------------------------------------------------

    def _open(
        self, prompt: Prompt, params: SamplingParams, priority: int, subscriber: _Subscriber
    ) -> RequestId:
        request = self.engine.add_request(prompt, params, priority=priority)
        self._subscribers[request] = subscriber
        return request

    def _drop(self, request: RequestId) -> None:
        self._subscribers.pop(request, None)
        self.engine.cancel(request)

    def _work(self) -> None:
        try:
            while self._take_commands():
                if self.engine.has_work:
                    for event in self.engine.step():
                        self._dispatch(event)
            self._finish(InfercError("the engine was closed."))
        except BaseException as error:  # every caller gets it; there is nobody else to tell
            self._finish(error)

    def _take_commands(self) -> bool:
        """Run what callers asked for, waiting for it when idle; False when told to stop."""
        while True:
            try:
                command = self._commands.get(block=not self.engine.has_work)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()

    def _dispatch(self, event: Event) -> None:
        subscriber = self._subscribers.get(event.request)
        if subscriber is not None and not subscriber.put(event):
            self._drop(event.request)

    def _finish(self, error: BaseException) -> None:
        """Close the gate, let commands already posted run, and end all streams with `error`."""
        with self._gate:
            self._end = error
        while not self._commands.empty():
            command = self._commands.get()
            if command is not None:
                command()
        for subscriber in self._subscribers.values():
            subscriber.put(error)
        self._subscribers.clear()
