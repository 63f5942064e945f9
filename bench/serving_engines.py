"""The engines under load: ours in process, others as servers that stream over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from bench.serving_load import Request

START_LIMIT_S = 600.0


class Inferc:
    """Our engine through `AsyncEngine`, in the process of the client: there is no server yet."""

    name = "inferc"

    def __init__(
        self,
        artifact: Path,
        threads: int,
        kv_tokens: int,
        chunk_tokens: int | None = None,
        how: str = "`AsyncEngine` in process, no HTTP; prefix cache and chunked prefill on",
    ) -> None:
        self.artifact, self.threads, self.kv_tokens = artifact, threads, kv_tokens
        self.chunk_tokens, self.how = chunk_tokens, how
        self.engine: Any = None

    async def open(self) -> None:
        import inferc
        from inferc.runtime.artifact import read_manifest

        kv = read_manifest(self.artifact).kv
        self.engine = inferc.AsyncEngine(
            inferc.load(
                self.artifact,
                threads=self.threads,
                kv_budget_bytes=self.kv_tokens // kv.page_tokens * kv.page_bytes,
                chunk_tokens=self.chunk_tokens,
            )
        )

    async def stream(self, request: Request) -> AsyncIterator[int]:
        from inferc import SamplingParams

        params = SamplingParams(max_tokens=request.answer_tokens, ignore_eos=True)
        async for event in self.engine.stream(list(request.prompt), params):
            if event.token is not None:
                yield 1

    async def close(self) -> None:
        if self.engine is not None:
            await self.engine.close()


class Server:
    """A program that serves HTTP on a port of this machine and streams server-sent events."""

    def __init__(
        self, name: str, how: str, command: list[str], environment: Mapping[str, str], log: Path
    ) -> None:
        self.name, self.how, self.command, self.log = name, how, command, log
        self.environment, self.port = environment, free_port()
        self.process: asyncio.subprocess.Process | None = None

    def body(self, request: Request) -> tuple[str, dict[str, Any]]:
        """Path and JSON of a request."""
        raise NotImplementedError

    def tokens(self, event: Mapping[str, Any]) -> int:
        """How many tokens an event brings."""
        raise NotImplementedError

    async def open(self) -> None:
        with self.log.open("wb") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(word.replace("{port}", str(self.port)) for word in self.command),
                stdout=log,
                stderr=log,
                env=os.environ | dict(self.environment),
            )
        async with asyncio.timeout(START_LIMIT_S):
            while not await self._healthy():
                if self.process.returncode is not None:
                    raise RuntimeError(f"{self.name} ended at once, see {self.log.name}")
                await asyncio.sleep(0.5)

    async def stream(self, request: Request) -> AsyncIterator[int]:
        path, body = self.body(request)
        async with connection(self.port) as (reader, writer):
            await send(writer, "POST", path, json.dumps(body).encode())
            async for event in events(reader):
                if count := self.tokens(event):
                    yield count

    async def close(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.terminate()
            try:
                await asyncio.wait_for(self.process.wait(), 10)
            except TimeoutError:
                self.process.kill()
                await self.process.wait()

    async def _healthy(self) -> bool:
        try:
            async with connection(self.port) as (reader, writer):
                await send(writer, "GET", "/health", b"")
                return b" 200 " in await reader.readline()
        except OSError:
            return False


class LlamaServer(Server):
    """llama.cpp's own server and its own endpoint, which takes and returns token ids."""

    def body(self, request: Request) -> tuple[str, dict[str, Any]]:
        return "/completion", {
            "prompt": list(request.prompt),
            "n_predict": request.answer_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "cache_prompt": True,
            "return_tokens": True,
            "stream": True,
        }

    def tokens(self, event: Mapping[str, Any]) -> int:
        if "error" in event:
            raise RuntimeError(str(event["error"]))
        return len(event.get("tokens") or ())


class OpenAIServer(Server):
    """A server with OpenAI's `/v1/completions`, such as vLLM's."""

    def __init__(self, *args: Any, model: str) -> None:
        super().__init__(*args)
        self.model = model

    def body(self, request: Request) -> tuple[str, dict[str, Any]]:
        return "/v1/completions", {
            "model": self.model,
            "prompt": list(request.prompt),
            "max_tokens": request.answer_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "return_token_ids": True,
            "stream": True,
        }

    def tokens(self, event: Mapping[str, Any]) -> int:
        if "error" in event:
            raise RuntimeError(str(event["error"]))
        return sum(len(choice.get("token_ids") or ()) for choice in event.get("choices", ()))


# -- the least of HTTP/1.1 that these servers need ------------------------------------------


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.asynccontextmanager
async def connection(
    port: int,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection that is closed whatever happens, so that the server drops the request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def send(writer: asyncio.StreamWriter, method: str, path: str, body: bytes) -> None:
    """Write a request that asks for the connection to end with the answer."""
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await writer.drain()


async def open_body(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Check the head of an answer, then give the pieces of its body.

    Raises:
        RuntimeError: Any status but 200, with what the server says.
    """
    status, chunked = await reader.readline(), False
    while header := (await reader.readline()).strip().lower():
        chunked |= header == b"transfer-encoding: chunked"
    if b" 200 " not in status:
        said = (await reader.read(500)).decode(errors="replace")
        raise RuntimeError(f"{status.decode().strip()}: {said}")
    while chunked and (size := int((await reader.readline()).split(b";")[0] or b"0", 16)):
        yield await reader.readexactly(size)
        await reader.readline()
    while not chunked and (piece := await reader.read(1 << 16)):
        yield piece


async def events(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """The JSON of server-sent events, until the answer ends."""
    rest = b""
    async for piece in open_body(reader):
        *lines, rest = (rest + piece).split(b"\n")
        for line in map(bytes.strip, lines):
            if line.startswith(b"data: ") and line != b"data: [DONE]":
                yield json.loads(line[len(b"data: ") :])
