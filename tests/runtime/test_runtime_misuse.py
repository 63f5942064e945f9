"""What callers get wrong is refused by name, and the engine goes on as if it had not been asked."""

import ctypes
import gc
import json
import math
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from test_runtime_engine import essence, make_engine

from inferc.errors import ArtifactError, InfercError, RequestError
from inferc.runtime.engine import Engine, load
from inferc.runtime.executors.base import Logits
from inferc.runtime.plan import Plan

# Of every field: wrong kind, wrong range, and what only looks like a number.
BAD_OPTIONS = {
    "max_tokens": [0, -1, 2.5, "3", None, True],
    "temperature": [-1, math.nan, math.inf, "x", None, True],
    "top_k": [0, 1.5, "a"],
    "top_p": [0, 1.1, math.nan, None, "a"],
    "min_p": [-0.1, 1.1, math.nan, None],
    "repetition_penalty": [0, 1e-308, 1e308, math.nan, None, "a"],
    "presence_penalty": [1e308, -1e308, math.nan, None],
    "frequency_penalty": [1e308, -1e308, math.nan, None],
    "logit_bias": [{"5": 1.0}, {5: "x"}, {5: 1e308}, {5: math.inf}, {10**9: 1}, None, [1]],
    "seed": [1.5, "a", True],
    "n": [0, 1.5, None],
    "stop": [5, [1], [""], ["a", 1]],
    "stop_token_ids": [5, ["a"], [1.5]],
    "ignore_eos": ["no", None, 1],
    "logprobs": [-1, 1.5, True],
    "skip_special_tokens": [None],
}
BAD_PROMPTS = [[], b"Hi", None, 5, {"a": 1}, [1.5], [True], [-1], [10**30], "a\ud800b", [["a"]]]


def goes_on(engine: Engine) -> bool:
    free = engine.scheduler.blocks.free == engine.scheduler.blocks.total
    fresh = make_engine().generate("Hello", max_tokens=5)
    return (
        free
        and not engine.has_work
        and essence(engine.generate("Hello", max_tokens=5)) == essence(fresh)
    )


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD_OPTIONS.items() for value in values]
)
def test_bad_options(name: str, value: object) -> None:
    engine = make_engine()
    with pytest.raises(RequestError, match=f"{name}: "):
        engine.generate("Hi", **{name: value})
    assert goes_on(engine)


@pytest.mark.parametrize("prompt", BAD_PROMPTS)
def test_bad_prompts(prompt: object) -> None:
    engine = make_engine()
    for attempt in (engine.generate, engine.stream, engine.logits):
        with pytest.raises(RequestError, match=r"[Pp]rompt"):
            attempt(prompt)
    with pytest.raises(RequestError):
        engine.generate(["Hello", prompt])
    assert goes_on(engine)


def test_arrays_are_ids() -> None:
    engine = make_engine()
    expected = essence(engine.generate([5, 6], max_tokens=4))
    for ids in (np.array([5, 6]), [np.int32(5), np.int64(6)], (5, 6), iter([5, 6])):
        assert essence(engine.generate(ids, max_tokens=np.int64(4))) == expected
    both = essence(engine.generate([np.array([5, 6]), "Hello"], max_tokens=4))
    assert both[:1] == expected and len(both) == 2
    options = {"temperature": np.float32(1.0), "max_tokens": 4}
    assert engine.generate("Hi", seed=np.int64(-3), **options)[0].token_ids == (
        engine.generate("Hi", seed=-3, **options)[0].token_ids
    )


def test_other_arguments() -> None:
    engine = make_engine()
    with pytest.raises(RequestError, match="params: expected SamplingParams"):
        engine.generate("Hi", {"max_tokens": 3})
    with pytest.raises(RequestError, match="priority: expected an integer"):
        engine.generate("Hi", priority="high")
    for chunk in (0, -1, 1.5):
        with pytest.raises(RequestError, match="chunk_tokens: expected"):
            engine.logits([1, 2], chunk)
    assert goes_on(engine)


def test_extreme_options_stay_finite() -> None:
    extremes = [
        {"logit_bias": {5: 1e30}, "repetition_penalty": 0.001},
        {"presence_penalty": -1000, "frequency_penalty": -1000},
        {"temperature": 1e-300},
        {"temperature": 1e300, "top_k": 10**9},
    ]
    for options in extremes:
        engine = make_engine()
        options = {"temperature": 1.0, "seed": 0, "max_tokens": 30, "ignore_eos": True} | options
        assert len(engine.generate("Hi", **options)[0].token_ids) == 30


def test_streams_that_are_dropped_leave_nothing_behind() -> None:
    """Before the first event, after it, and by an error in the loop."""
    engine = make_engine()
    engine.stream("Hello", max_tokens=50)
    next(engine.stream("Hello", max_tokens=50, ignore_eos=True))

    def fail() -> None:
        for _ in engine.stream("Hello", max_tokens=50, ignore_eos=True):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert goes_on(engine) and not engine._inboxes and not engine._outputs


def test_two_threads_are_refused() -> None:
    engine = make_engine()
    entered, leave = threading.Event(), threading.Event()

    def wait(plan: Plan, logits: Logits) -> None:
        entered.set()
        leave.wait(10)

    engine.observe(wait)
    worker = threading.Thread(target=engine.generate, args=("Hello",), kwargs={"max_tokens": 2})
    worker.start()
    assert entered.wait(10)
    with pytest.raises(InfercError, match="running a step for another thread"):
        engine.logits([1, 2])
    with pytest.raises(InfercError, match="AsyncEngine serves many"):
        engine.step()
    leave.set()
    worker.join()
    engine.observe(None)
    assert goes_on(engine)


def test_a_closed_engine_says_so(toy_artifact: Path) -> None:
    engine = load(toy_artifact, threads=1)
    opened = engine.stream("Hi", max_tokens=20, ignore_eos=True)
    next(opened)
    engine.close()
    for attempt in (
        lambda: engine.generate("Hi"),
        lambda: next(opened),
        lambda: list(engine.stream("Hi")),
        lambda: engine.logits([1]),
    ):
        with pytest.raises(InfercError, match="has been closed"):
            attempt()


def test_an_engine_takes_its_threads_along(toy_artifact: Path) -> None:
    """Closed, closed twice, or only dropped."""
    closed = load(toy_artifact, threads=3)
    library = closed.executor._library._library
    pools = ctypes.c_int32.in_dll(library, "toy_live_pools")
    before = pools.value
    closed.close()
    closed.close()
    assert pools.value == before - 1
    dropped = load(toy_artifact, threads=3)
    dropped.generate("Hi", max_tokens=2)
    assert pools.value == before
    del dropped
    gc.collect()
    assert pools.value == before - 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_engine_says_so(toy_artifact: Path) -> None:
    """Worker threads stay in the parent: a step in the child would wait for them for ever."""
    code = """
import os, signal, sys
from inferc.errors import InfercError
from inferc.runtime.engine import load
engine = load(sys.argv[1], threads=2)
before = engine.generate("Hi", max_tokens=3)
child = os.fork()
if child == 0:
    signal.alarm(20)
    try:
        engine.generate("Hi", max_tokens=3)
    except InfercError as error:
        engine.close()
        with load(sys.argv[1], threads=2) as own:
            same = own.generate("Hi", max_tokens=3)[0].token_ids == before[0].token_ids
        os._exit(7 if same and "forked" in str(error) else 1)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert engine.generate("Hi", max_tokens=3)[0].token_ids == before[0].token_ids
engine.close()
"""
    subprocess.run([sys.executable, "-c", code, str(toy_artifact)], check=True, timeout=600)


@pytest.mark.parametrize("name", ["threads", "chunk_tokens", "kv_budget_bytes"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "2", True])
def test_bad_arguments_of_load(toy_artifact: Path, name: str, value: object) -> None:
    with pytest.raises(RequestError, match=f"{name}: expected None or an integer of at least 1"):
        load(toy_artifact, **{name: value})


@pytest.mark.parametrize("content", ["", "[]", "null", "3", '"x"', "{", b"\xff\xfe"])
@pytest.mark.parametrize("name", ["tokenizer.json", "generation.json", "chat_template.jinja"])
def test_damaged_files_without_the_check(
    toy_artifact: Path, tmp_path: Path, name: str, content: str | bytes
) -> None:
    """`check=False` skips the digests; what is no JSON, or not UTF-8, is still told by name."""
    copy = Path(shutil.copytree(toy_artifact, tmp_path / "copy.inferc"))
    data = content if isinstance(content, bytes) else content.encode()
    (copy / name).write_bytes(data)
    if name == "chat_template.jinja" and isinstance(content, str):
        load(copy, threads=1, check=False).close()
        return
    with pytest.raises(ArtifactError, match=name):
        load(copy, threads=1, check=False)


def test_empty_generation_defaults(toy_artifact: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(toy_artifact, tmp_path / "copy.inferc"))
    (copy / "generation.json").write_text(json.dumps({}))
    with load(copy, threads=1, check=False) as engine:
        assert engine.defaults.temperature == 0
