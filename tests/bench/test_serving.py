"""`bench.serving` with made-up engines: arrivals, percentiles, goodput, HTTP, the table."""

from __future__ import annotations

import asyncio
import json
import statistics
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bench import serving
from bench.docs_section import put_into_docs
from bench.serving_engines import LlamaServer, OpenAIServer, events
from bench.serving_load import Load, Request, poisson, requests
from bench.serving_metrics import Answer, Objective, percentile, summary
from bench.serving_report import report
from bench.serving_run import run

LOAD = Load(400, vocab_size=1000, seed=3)


class MadeUp:
    """Answers with numbers only; fails where it is told to."""

    name, how = "made up", "made up"

    def __init__(self, broken: bool = False, short: bool = False, hangs: bool = False) -> None:
        self.broken, self.short, self.hangs = broken, short, hangs
        self.running = self.most = self.closed = 0

    async def open(self) -> None:
        if self.broken:
            raise RuntimeError("no model")

    async def stream(self, request: Request) -> AsyncIterator[int]:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            for _ in range(request.answer_tokens - self.short):
                await asyncio.sleep(3600 if self.hangs else 0)
                yield 1
        finally:
            self.running -= 1

    async def close(self) -> None:
        self.closed += 1


# -- the load -------------------------------------------------------------------------------


def test_arrivals_are_poisson_and_follow_the_seed() -> None:
    asked = requests(LOAD)
    due = poisson(asked, 4.0, seed=1)
    assert due == poisson(asked, 4.0, seed=1) != poisson(asked, 4.0, seed=2)
    times = [0.0, *(request.arrival_s for request in due)]
    gaps = [b - a for a, b in pairwise(times)]
    assert min(gaps) > 0
    assert statistics.mean(gaps) == pytest.approx(0.25, rel=0.15)
    assert statistics.pstdev(gaps) == pytest.approx(0.25, rel=0.2)  # equal to the mean: exponential
    twice = poisson(asked, 8.0, seed=1)
    assert [r.arrival_s for r in twice] == pytest.approx([r.arrival_s / 2 for r in due])


def test_requests_follow_the_seed_and_share_beginnings() -> None:
    asked = requests(LOAD)
    assert asked == requests(LOAD)
    assert asked != requests(Load(400, vocab_size=1000, seed=4))
    heads = [request.prompt[: LOAD.system_tokens] for request in asked]
    shared = [head for head in heads if heads.count(head) > 1]
    assert len(set(shared)) == LOAD.system_prompts
    assert len(shared) / len(asked) == pytest.approx(LOAD.shared, abs=0.1)
    assert all(100 <= token < 900 for request in asked for token in request.prompt)


def test_lengths_have_the_means_that_are_cited() -> None:
    asked = requests(Load(4000, vocab_size=1000, shared=0.0))
    # Cut at 1,024, so the mean lies a little below that of the distribution.
    assert statistics.mean(len(r.prompt) for r in asked) == pytest.approx(161, rel=0.08)
    assert statistics.mean(r.answer_tokens for r in asked) == pytest.approx(338, rel=0.08)
    half = requests(Load(4000, vocab_size=1000, shared=0.0, scale=0.5))
    assert statistics.mean(r.answer_tokens for r in half) == pytest.approx(169, rel=0.08)


# -- arithmetic -----------------------------------------------------------------------------


def test_percentiles_are_by_nearest_rank() -> None:
    values = [float(v) for v in range(100, 0, -1)]
    assert [percentile(values, p) for p in (50, 90, 99, 100)] == [50, 90, 99, 100]
    assert percentile([7.0], 50) == percentile([7.0], 99) == 7.0


def test_times_of_an_answer() -> None:
    answer = Answer(1.0, 10, (1.5, 1.6, 2.0, 2.1))
    assert answer.ttft_s == pytest.approx(0.5)
    assert answer.tpot_s == pytest.approx(0.2)
    assert answer.longest_gap_s == pytest.approx(0.4)
    assert Answer(1.0, 10, (1.5,)).tpot_s is None


def test_goodput_counts_what_meets_both_objectives() -> None:
    objective = Objective(ttft_s=1.0, tpot_s=0.1)
    answers = [
        Answer(0.0, 10, (1.0, 1.0625)),  # in time
        Answer(0.0, 10, (1.2, 1.3)),  # first token too late
        Answer(0.0, 10, (0.5, 0.7)),  # tokens too far apart
        Answer(0.0, 10, (0.9,)),  # one token has no distance to another
        Answer(0.0, 10, (0.5, 0.6), error="lost"),
        Answer(3.0, 10, (), error="refused"),
        Answer(3.0, 10, (3.9375, 4.0)),
    ]
    assert [objective.met(a) for a in answers] == [True, False, False, True, False, False, True]
    row = summary(answers, objective)
    assert (row["requests"], row["failed"], row["within_objective"]) == (7, 2, 3)
    assert row["seconds"] == 4.0
    assert row["goodput_per_s"] == pytest.approx(3 / 4)
    assert row["new_tokens_per_s"] == pytest.approx(9 / 4)
    assert row["tokens_per_s"] == pytest.approx((9 + 50) / 4, abs=1e-3)
    assert row["errors"] == ["lost", "refused"]


def test_a_run_without_answers_has_no_percentiles() -> None:
    row = summary([Answer(0.0, 1, (), error="x")], Objective(1.0, 1.0))
    assert row["ttft_s"] is None and row["goodput_per_s"] == 0


# -- the run --------------------------------------------------------------------------------


def test_a_run_keeps_order_and_notes_tokens() -> None:
    asked = [Request((1, 2, 3), n, 0.001 * (5 - n)) for n in (1, 2, 3)]
    answers = asyncio.run(run(MadeUp(), asked, limit_s=60))
    assert [len(a.token_times_s) for a in answers] == [1, 2, 3]
    assert all(a.error is None and a.ttft_s >= 0 for a in answers)


def test_places_bound_what_runs_at_once() -> None:
    engine = MadeUp()
    asyncio.run(run(engine, [Request((1,), 5)] * 9, limit_s=60, concurrency=2))
    assert engine.most == 2


def test_a_hanging_engine_and_a_short_answer_are_failures() -> None:
    (hung,) = asyncio.run(run(MadeUp(hangs=True), [Request((1,), 2)], limit_s=0.01))
    assert hung.error is not None and "not done" in hung.error
    (short,) = asyncio.run(run(MadeUp(short=True), [Request((1,), 2)], limit_s=60))
    assert short.error == "1 tokens instead of 2"


def test_a_broken_engine_costs_its_own_rows_only() -> None:
    load = Load(3, vocab_size=1000, scale=0.05)
    made: list[MadeUp] = []

    def broken() -> MadeUp:
        made.append(MadeUp(broken=True))
        return made[-1]

    engines: dict[str, Any] = {"works": MadeUp, "broken": broken}
    results = asyncio.run(serving.measure(engines, load, (1000.0,), limit_s=60))
    assert [row["engine"] for row in results["rows"] if "error" in row] == ["broken"] * 3
    loaded = [row for row in results["rows"] if "rate_per_s" in row and "error" not in row]
    assert [(row["engine"], row["requests"], row["failed"]) for row in loaded] == [("works", 3, 0)]
    opened = [engine for engine in made if engine.closed]
    assert len(opened) == 3  # one is made only to ask how it runs

    with pytest.raises(SystemExit, match="No engine answered"):
        asyncio.run(serving.measure({"broken": broken}, load, (1.0,), limit_s=60))


# -- HTTP -----------------------------------------------------------------------------------


def _server(answer: bytes) -> Any:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    return handle


def _chunked(*pieces: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (*pieces, b""))
    return head + body


async def _tokens(server: Any, answer: bytes) -> list[int]:
    listening = await asyncio.start_server(_server(answer), "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    async with listening:
        return [count async for count in server.stream(Request((1, 2), 3))]


def test_tokens_of_streamed_events(tmp_path: Path) -> None:
    # An event may be cut anywhere by the chunks of the transfer.
    llama = _chunked(
        b'data: {"tokens": [5]}\n\nda', b'ta: {"tokens": [6, 7]}\n\n', b'data: {"tokens": []}\n\n'
    )
    ours = LlamaServer("llama.cpp", "", [], {}, tmp_path / "log")
    assert asyncio.run(_tokens(ours, llama)) == [1, 2]
    vllm = _chunked(
        b'data: {"choices": [{"token_ids": [5, 6]}]}\n\n',
        b'data: {"choices": []}\n\n',
        b"data: [DONE]\n\n",
    )
    theirs = OpenAIServer("vLLM", "", [], {}, tmp_path / "log", model="m")
    assert asyncio.run(_tokens(theirs, vllm)) == [2]


def test_a_refusal_says_what_the_server_says(tmp_path: Path) -> None:
    server = LlamaServer("llama.cpp", "", [], {}, tmp_path / "log")
    refusal = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 8\r\n\r\ntoo long"
    with pytest.raises(RuntimeError, match=r"400 Bad Request: too long"):
        asyncio.run(_tokens(server, refusal))
    error = _chunked(b'data: {"error": {"message": "no slot"}}\n\n')
    with pytest.raises(RuntimeError, match="no slot"):
        asyncio.run(_tokens(server, error))


def test_a_body_without_chunks() -> None:
    async def read() -> list[dict[str, Any]]:
        reader = asyncio.StreamReader()
        reader.feed_data(b'HTTP/1.1 200 OK\r\n\r\ndata: {"a": 1}\r\n\r\ndata: {"a": 2}\n\n')
        reader.feed_eof()
        return [event async for event in events(reader)]

    assert asyncio.run(read()) == [{"a": 1}, {"a": 2}]


def test_a_server_that_ends_at_once_is_an_error(tmp_path: Path) -> None:
    server = LlamaServer("llama.cpp", "", ["false"], {}, tmp_path / "log")
    with pytest.raises(RuntimeError, match="ended at once"):
        asyncio.run(server.open())


# -- the table ------------------------------------------------------------------------------


def test_the_table_has_a_line_for_every_row(tmp_path: Path) -> None:
    load = Load(3, vocab_size=1000, scale=0.05)
    engines: dict[str, Any] = {"works": MadeUp, "broken": lambda: MadeUp(broken=True)}
    found = asyncio.run(serving.measure(engines, load, (1000.0,), limit_s=60))
    facts = {
        "machine": "a CPU", "threads": 2, "model": "M", "weights": "Q4_1", "kv_tokens": 1024,
        "system_tokens": 13, "note": "Other load ran.",
    }  # fmt: skip
    text = report(json.loads(json.dumps(facts | found)))
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(lines) == 1 + len(found["rows"])
    assert sum(" of 3 |" in line for line in lines) == 1
    assert sum("RuntimeError: no model" in line for line in lines) == 3
    assert len({line.count("|") for line in lines}) == 1
    assert "Other load ran." in text


def test_a_section_replaces_its_own_text_only(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text("# Performance\n\nWords.\n\n## GPUs\n\nMore.\n")
    put_into_docs(page, "serving", "a", "one")
    put_into_docs(page, "perplexity", "b", "two")
    put_into_docs(page, "serving", "a", "three")
    text = page.read_text()
    assert "one" not in text
    assert text.index("three") < text.index("two") < text.index("## GPUs\n\nMore.\n")
    assert text.startswith("# Performance\n\nWords.\n")
    page.write_text(text.replace("<!-- /serving -->", ""))
    with pytest.raises(SystemExit, match="/serving"):
        put_into_docs(page, "serving", "a", "four")
