"""Send requests to an engine when they are due, and note when their tokens come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from bench.serving_load import Request
from bench.serving_metrics import Answer


class ServingEngine(Protocol):
    """What is measured: greedy, end of sequence ignored, exactly the tokens asked for."""

    name: str
    how: str

    async def open(self) -> None:
        """Load the model; ready for requests afterwards."""

    def stream(self, request: Request) -> AsyncIterator[int]:
        """Numbers of tokens, as they come: usually 1 at a time."""

    async def close(self) -> None:
        """Give everything back, also after a failure."""


async def run(
    engine: ServingEngine,
    asked: Sequence[Request],
    *,
    limit_s: float,
    concurrency: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Answer]:
    """Answers in the order of `asked`; what is not done `limit_s` after the start has failed.

    With `concurrency`, requests wait for one of so many places and arrive when they have one: the
    closed loop that finds how much an engine can do.
    """
    places = asyncio.Semaphore(concurrency or len(asked))
    start = clock()

    async def one(request: Request) -> Answer:
        times: list[float] = []
        error, arrival_s = None, request.arrival_s
        try:
            async with asyncio.timeout(limit_s):
                await asyncio.sleep(request.arrival_s)
                async with places:
                    arrival_s = request.arrival_s if concurrency is None else clock() - start
                    async for tokens in engine.stream(request):
                        times += [clock() - start] * tokens
        except TimeoutError:
            error = f"not done {limit_s:.0f} s after the start"
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
        if error is None and len(times) != request.answer_tokens:
            error = f"{len(times)} tokens instead of {request.answer_tokens}"
        return Answer(arrival_s, len(request.prompt), tuple(times), error)

    return list(await asyncio.gather(*map(one, asked)))
