"""The asyncio face: many callers, cancellation, failures that reach the caller."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import numpy as np
import pytest
from test_runtime_engine import PROMPTS, essence, make_engine

from inferc.errors import InfercError, RequestError
from inferc.runtime.async_engine import AsyncEngine
from inferc.runtime.engine import Engine
from inferc.runtime.plan import Plan


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 30))


def hold_after_first_step(engine: Engine) -> threading.Event:
    """Later steps wait for the event: what a test does to a running stream cannot come too late."""
    run_step, steps, proceed = engine.executor.run, iter(range(2)), threading.Event()

    def held(plan: Plan) -> np.ndarray:
        if next(steps, 1):
            assert proceed.wait(20)
        return run_step(plan)

    engine.executor.run = held
    return proceed


async def while_held(action: Coroutine[Any, Any, Any], proceed: threading.Event) -> None:
    """Start an action that the worker answers between steps, then let the steps go on."""
    task = asyncio.create_task(action)
    await asyncio.sleep(0)  # the task runs to its first wait: its command is queued
    proceed.set()
    await task


def test_callers_together_get_what_each_gets_alone() -> None:
    alone = [make_engine().generate(prompt, max_tokens=15)[0] for prompt in PROMPTS]

    async def main() -> None:
        async with AsyncEngine(make_engine(blocks=20)) as engine:
            answers = await asyncio.gather(
                *(engine.generate(prompt, max_tokens=15) for prompt in PROMPTS)
            )
            together = await engine.generate(PROMPTS, max_tokens=15)
        assert essence([answer[0] for answer in answers]) == essence(alone) == essence(together)

    run(main())


def test_stream_and_chat() -> None:
    expected = make_engine().generate("[hi]", max_tokens=9)

    async def main() -> None:
        template = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
        async with AsyncEngine(make_engine(template=template)) as engine:
            texts = [event.text async for event in engine.stream("[hi]", max_tokens=9)]
            assert "".join(texts) == expected[0].text
            messages = [{"role": "user", "content": "hi"}]
            assert essence(await engine.chat(messages, max_tokens=9)) == essence(expected)
            chat = [event.text async for event in engine.chat_stream(messages, max_tokens=9)]
            assert chat == texts

    run(main())


def test_cancelling_the_task_frees_the_pages() -> None:
    async def main() -> None:
        inner = make_engine(context_tokens=100)
        async with AsyncEngine(inner) as engine:

            async def endless() -> None:
                while True:
                    await engine.generate("Hello", max_tokens=90, ignore_eos=True)

            tasks = [asyncio.create_task(endless()) for _ in range(3)]
            await asyncio.sleep(0.05)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            async for event in engine.stream("Hello", max_tokens=90, ignore_eos=True):
                if event.finish_reason is None:
                    await engine.cancel(event.request)
                    break
            await engine.generate("a", max_tokens=1)
            await engine.generate("a", max_tokens=1)
        assert not inner.has_work
        assert inner.scheduler.blocks.free == inner.executor.total_blocks

    run(main())


def test_cancel_ends_the_stream() -> None:
    async def main() -> None:
        inner = make_engine()
        proceed = hold_after_first_step(inner)
        async with AsyncEngine(inner) as engine:
            reasons = []
            async for event in engine.stream("Hello", max_tokens=90, ignore_eos=True):
                if not reasons:
                    await while_held(engine.cancel(event.request), proceed)
                reasons.append(event.finish_reason)
            assert reasons[-1] == "cancelled" and len(reasons) < 90

    run(main())


def test_refusals_and_failures_reach_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        inner = make_engine()
        engine = AsyncEngine(inner)
        with pytest.raises(RequestError, match="empty"):
            await engine.generate([[]])
        with pytest.raises(RequestError, match="Unknown sampling option"):
            await engine.generate("a", heat=1)

        def fail(plan: Plan) -> np.ndarray:
            raise InfercError("the step failed")

        monkeypatch.setattr(inner.executor, "run", fail)
        with pytest.raises(InfercError, match="the step failed"):
            await engine.generate("a")
        with pytest.raises(InfercError, match="takes no more requests: the step failed"):
            await engine.generate("a")
        await engine.close()
        await engine.close()
        assert inner.executor.closed

    run(main())


def test_close_ends_open_streams() -> None:
    async def main() -> None:
        inner = make_engine()
        proceed = hold_after_first_step(inner)
        engine = AsyncEngine(inner)
        stream = engine.stream("Hello", max_tokens=90, ignore_eos=True)
        await anext(stream)
        await while_held(engine.close(), proceed)
        with pytest.raises(InfercError, match="closed"):
            async for _ in stream:
                pass

    run(main())
