"""The engine over the toy model: batching changes nothing, options do what they say."""

import random
from collections import Counter

import numpy as np
import pytest
from runtime_tokenizers import byte_level
from runtime_toy import ToyExecutor, answer, prefix_hashes, toy_logits

from inferc.errors import RequestError
from inferc.runtime.chat import ChatTemplate
from inferc.runtime.engine import Engine
from inferc.runtime.events import Completion, Event
from inferc.runtime.plan import Plan, plan_from_json
from inferc.runtime.request import SamplingParams
from inferc.runtime.scheduler_config import SchedulerConfig

VOCAB = 300
PROMPTS = ["Hello", "Hello, world", "Hello, world and more", "日本", "x" * 30, "Hello, world", "y"]


def make_engine(
    blocks: int = 64,
    page_tokens: int = 4,
    step_tokens: int = 16,
    sequences: int = 4,
    context_tokens: int = 100,
    template: str | None = None,
    **config: object,
) -> Engine:
    executor = ToyExecutor(blocks, page_tokens, VOCAB)
    return Engine(
        executor,
        byte_level(),
        SchedulerConfig(step_tokens, sequences, context_tokens, **config),
        chat_template=None if template is None else ChatTemplate(template, {}),
        check=True,
    )


def essence(completions: list[Completion]) -> list[tuple[object, ...]]:
    return [(c.text, c.token_ids, c.finish_reason, c.logprobs, c.top_logprobs) for c in completions]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 1.0, "seed": 3, "top_p": 0.9, "logprobs": 2},
        {"temperature": 0.8, "seed": 3, "n": 3, "frequency_penalty": 0.5, "top_k": 20},
    ],
)
def test_results_do_not_depend_on_the_batch(options: dict[str, object]) -> None:
    """Alone, together, starved of pages, without the cache, in chunks: the same, bit for bit."""
    alone = []
    for prompt in PROMPTS:
        alone += make_engine().generate(prompt, max_tokens=20, ignore_eos=True, **options)
    variants = [
        {},
        {"prefix_cache": False},
        {"blocks": 15},
        {"blocks": 15, "prefix_cache": False},
        {"chunk_tokens": 3},
        {"mixed_prompt_tokens": 2},
        {"step_tokens": 1},
        {"page_tokens": 1, "blocks": 60},
    ]
    preempted = 0
    for variant in variants:
        engine = make_engine(**variant)
        together = engine.generate(PROMPTS, max_tokens=20, ignore_eos=True, **options)
        assert essence(together) == essence(alone), variant
        assert engine.scheduler.blocks.free == engine.executor.total_blocks
        preempted += engine.stats.preemptions
    assert preempted > 0


def test_forty_mixed_requests() -> None:
    rng = random.Random(0)
    stem = "The same beginning, "
    requests = [
        (
            stem[: rng.randint(0, 20)] + "".join(rng.choices("abcd", k=rng.randint(1, 20))),
            SamplingParams(
                max_tokens=rng.randint(1, 30),
                temperature=rng.choice([0.0, 1.0]),
                seed=rng.randint(0, 9),
                stop=rng.choice([(), ("a",), ("qu", "e")]),
            ),
        )
        for _ in range(40)
    ]
    alone = [make_engine().generate(*request)[0] for request in requests]
    for cache in (True, False):
        engine = make_engine(blocks=24, sequences=8, prefix_cache=cache)
        ids = [engine.add_request(*request, priority=rng.randint(0, 2)) for request in requests]
        events: dict[int, list[Event]] = {request: [] for request in ids}
        while engine.has_work:
            for event in engine.step():
                events[event.request].append(event)
        for request, expected in zip(ids, alone, strict=True):
            assert "".join(event.text for event in events[request]) == expected.text
            assert events[request][-1].finish_reason == expected.finish_reason
        assert engine.stats.preemptions > 0
        assert (engine.stats.cached_tokens > 0) == cache


def test_prefix_cache_serves_the_second_turn() -> None:
    engine = make_engine()
    first = engine.generate("a" * 20, max_tokens=8)[0]
    prompt = [*engine.tokenizer.encode("a" * 20), *first.token_ids]
    second = engine.generate(prompt, max_tokens=2)[0]
    assert first.usage.cached_tokens == 0
    assert second.usage.cached_tokens == (len(prompt) - 1) // 4 * 4


def test_samples_share_the_prompt() -> None:
    engine = make_engine(sequences=8, step_tokens=64)
    options = {"n": 4, "temperature": 1.0, "seed": 1, "max_tokens": 4, "ignore_eos": True}
    completions = engine.generate("a" * 40, **options)
    assert [completion.index for completion in completions] == [0, 1, 2, 3]
    assert [completion.usage.cached_tokens for completion in completions] == [0, 40, 40, 40]
    assert len({completion.token_ids for completion in completions}) == 4


def test_stream_is_the_completion_in_pieces() -> None:
    engine = make_engine()
    expected = engine.generate("Hello", max_tokens=30, temperature=1.0, seed=1)[0]
    events = list(engine.stream("Hello", max_tokens=30, temperature=1.0, seed=1))
    assert "".join(event.text for event in events) == expected.text
    assert tuple(event.token for event in events) == expected.token_ids
    assert [event.finish_reason for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1].usage is not None
    assert events[-1].usage.completion_tokens == len(events)


def test_two_streams_and_a_served_request_interleave() -> None:
    alone = [make_engine().generate(prompt, max_tokens=9)[0].text for prompt in "abc"]
    engine = make_engine()
    served = engine.add_request("c", max_tokens=9)
    left, right = engine.stream("a", max_tokens=9), engine.stream("b", max_tokens=9)
    texts = ["", ""]
    for one, other in zip(left, right, strict=True):
        texts[0] += one.text
        texts[1] += other.text
    events = []
    while engine.has_work:
        events += engine.step()
    assert texts == alone[:2]
    assert "".join(event.text for event in events) == alone[2]
    assert {event.request for event in events} == {served}


def test_leaving_a_stream_cancels_it() -> None:
    engine = make_engine()
    stream = engine.stream("Hello", max_tokens=50, ignore_eos=True)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert not engine.has_work
    assert engine.scheduler.blocks.free == 64


def test_cancel_ends_with_an_event() -> None:
    engine = make_engine()
    request = engine.add_request("Hello", n=2, max_tokens=50, ignore_eos=True, temperature=1.0)
    engine.step()
    assert engine.cancel(request) and not engine.cancel(request)
    events = engine.step()
    assert [event.finish_reason for event in events] == ["cancelled"] * 2
    assert not engine.has_work


def test_an_error_in_a_step_does_not_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()

    def fail(plan: Plan) -> np.ndarray:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine.executor, "run", fail)
    with pytest.raises(KeyboardInterrupt):
        engine.generate(["a", "b"])
    monkeypatch.undo()
    assert not engine.has_work and engine.scheduler.blocks.free == 64
    assert engine.generate("a", max_tokens=5) == make_engine().generate("a", max_tokens=5)


def test_stop_tokens_and_strings() -> None:
    free = make_engine().generate("Hello", max_tokens=30, ignore_eos=True)[0]
    token = free.token_ids[7]
    first = free.token_ids.index(token)
    by_token = make_engine().generate(
        "Hello", max_tokens=30, ignore_eos=True, stop_token_ids=[token]
    )[0]
    assert by_token.token_ids == free.token_ids[: first + 1]
    assert by_token.finish_reason == "stop"
    stop = free.text[5:8]
    by_text = make_engine().generate("Hello", max_tokens=30, ignore_eos=True, stop=stop)[0]
    assert by_text.text == free.text[: free.text.index(stop)]
    assert by_text.finish_reason == "stop"


def test_eos_ends_unless_ignored() -> None:
    engine = make_engine()
    (eos,) = engine.tokenizer.facts.eos
    forced = {"logit_bias": {eos: 1000.0}, "max_tokens": 5}
    stopped = engine.generate("Hello", **forced)[0]
    assert (stopped.token_ids, stopped.text, stopped.finish_reason) == ((eos,), "", "stop")
    ignored = engine.generate("Hello", ignore_eos=True, **forced)[0]
    assert (ignored.token_ids, ignored.text, ignored.finish_reason) == ((eos,) * 5, "", "length")


def test_length_ends_at_the_context_and_at_the_pages() -> None:
    completion = make_engine(context_tokens=20).generate("abcd", ignore_eos=True)[0]
    assert completion.finish_reason == "length" and len(completion.token_ids) == 15
    completion = make_engine(blocks=3).generate("abcd", ignore_eos=True)[0]
    assert completion.finish_reason == "length" and len(completion.token_ids) == 7


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "prompt is empty"),
        ([5, VOCAB], {}, "has token 300; the model knows 0 to 299"),
        ("x" * 99, {}, "has 100 tokens, and at most 99 fit.*context of 100"),
        ("x", {"temperature": -1}, "temperature"),
        ("x", {"heat": 1}, "Unknown sampling option heat"),
        ("x", {"logit_bias": {VOCAB: 1.0}}, "logit_bias"),
    ],
)
def test_refusals(prompt: object, options: dict[str, object], message: str) -> None:
    engine = make_engine()
    with pytest.raises(RequestError, match=message):
        engine.add_request(prompt, **options)  # type: ignore[arg-type]
    assert not engine.has_work
    with pytest.raises(RequestError, match="raise kv_budget_bytes"):
        make_engine(blocks=2).generate("x" * 20)


def test_padded_ids_never_come_out() -> None:
    engine = make_engine()
    known = engine.tokenizer.known_ids(VOCAB)
    completion = engine.generate("a", max_tokens=90, temperature=50.0, ignore_eos=True)[0]
    assert all(known[token] for token in completion.token_ids)
    assert not known[260:].any()


def test_chat() -> None:
    engine = make_engine(template="{% for m in messages %}[{{ m.content }}]{% endfor %}")
    messages = [{"role": "user", "content": "hi"}]
    assert engine.chat_prompt(messages) == engine.tokenizer.encode("[hi]")
    expected = engine.generate("[hi]", max_tokens=5)
    assert essence(engine.chat(messages, max_tokens=5)) == essence(expected)
    streamed = "".join(event.text for event in engine.chat_stream(messages, max_tokens=5))
    assert streamed == expected[0].text
    with pytest.raises(RequestError, match="no chat template"):
        make_engine().chat(messages)


@pytest.mark.parametrize("chunk_tokens", [None, 1, 5])
def test_logits_of_every_position(chunk_tokens: int | None) -> None:
    engine = make_engine()
    ids = engine.tokenizer.encode("Hello, world. Hello!")
    logits = engine.logits(ids, chunk_tokens)
    hashes = prefix_hashes(ids)
    expected = [toy_logits(answer(hashes[: end + 1]), VOCAB) for end in range(len(ids))]
    assert np.array_equal(logits, expected)
    assert engine.scheduler.blocks.free == 64
    if chunk_tokens == 1:
        assert {plan.phase for plan in engine.executor.plans} == {"decode"}


def test_plans_are_logged_and_replayed() -> None:
    engine = make_engine(blocks=15)
    seen: list[tuple[str, np.ndarray]] = []
    engine.observe(lambda plan, logits: seen.append((plan.to_json(), logits.copy())))
    engine.generate(PROMPTS, max_tokens=10, ignore_eos=True)
    replay = ToyExecutor(15, 4, VOCAB)
    for line, logits in seen:
        assert np.array_equal(replay.run(plan_from_json(line)), logits)
    assert engine.executor.plans == [plan_from_json(line) for line, _ in seen]


def test_urgent_requests_go_first() -> None:
    engine = make_engine(sequences=1)
    order = []
    requests = {
        engine.add_request("a", priority=priority, max_tokens=4, ignore_eos=True): priority
        for priority in (0, 2, 1)
    }
    while engine.has_work:
        order += [requests[event.request] for event in engine.step() if event.finish_reason]
    assert order == [2, 1, 0]


def test_a_long_prompt_does_not_hold_up_decoding() -> None:
    engine = make_engine(step_tokens=8, context_tokens=200)
    quick = engine.add_request("a", max_tokens=12, ignore_eos=True)
    engine.step()
    engine.add_request("b" * 80, max_tokens=2)
    tokens = Counter(event.request for _ in range(6) for event in engine.step())
    assert tokens[quick] == 6


@pytest.mark.parametrize(("limit", "most"), [(None, 15), (5, 5)])
def test_prompts_beside_running_answers_are_cut(limit: int | None, most: int) -> None:
    """Together they take `mixed_prompt_tokens` rows; alone as many as a step has."""
    engine = make_engine(mixed_prompt_tokens=limit, prefix_cache=False)
    plans: list[Plan] = []
    engine.observe(lambda plan, logits: plans.append(plan))
    first = engine.add_request([1] * 16, max_tokens=12, ignore_eos=True)
    engine.step()
    for token in (2, 3):
        engine.add_request([token] * 14, max_tokens=1, ignore_eos=True)
    tokens = Counter(event.request for event in engine.step())
    while engine.has_work:
        tokens.update(event.request for event in engine.step() if event.token is not None)
    assert plans[0].tokens == 16  # nobody waits
    mixed = [plan.tokens - 1 for plan in plans[1:] if plan.tokens > 1]
    assert max(mixed) == most
    assert sum(mixed) == 28
    assert all(plan.sequences[0].length == 1 for plan in plans[1:])  # the answer never waits
    assert len(plans) == tokens[first] + 1 == 12
