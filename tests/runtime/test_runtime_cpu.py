"""The CPU executor over a step library with the real interface and a toy model."""

import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from runtime_artifacts import VOCAB, WEIGHT, fill_toy, toy_manifest

from inferc.errors import ArtifactError, InfercError, RequestError
from inferc.runtime.artifact import KvPlan, Limits, read_manifest
from inferc.runtime.artifact_writer import write_artifact
from inferc.runtime.engine import Engine, load
from inferc.runtime.executors.cpu import CpuExecutor
from inferc.runtime.kv_budget import kv_budget
from inferc.runtime.plan import Plan, PlannedSequence, Rows
from inferc.runtime.request import SequenceId

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="needs a C compiler"
)


def mix(value: int, other: int) -> int:
    return (((value ^ other) * 2654435761) + (value >> 13)) & 0xFFFFFFFF


def expected_logits(ids: list[int]) -> np.ndarray:
    rows, value = [], 7
    for position, token in enumerate(ids):
        value = mix(value, token + int(WEIGHT[position % 16]))
        rows.append([(mix(value, column) % 4096) / 256 for column in range(VOCAB)])
    return np.array(rows, np.float32)


@pytest.mark.parametrize("chunk_tokens", [None, 1, 3])
def test_logits_through_the_library(toy_artifact: Path, chunk_tokens: int | None) -> None:
    ids = [int(token) for token in np.random.default_rng(0).integers(0, 256, 37)]
    with load(toy_artifact, threads=2) as engine:
        assert np.array_equal(engine.logits(ids, chunk_tokens), expected_logits(ids))


def test_generation_is_the_same_in_every_batch(toy_artifact: Path) -> None:
    prompts = ["Hello", "Hello, world", "日本", "Hello, world and all", "z"]
    options = {"max_tokens": 12, "ignore_eos": True}
    with load(toy_artifact, threads=1) as engine:
        alone = [engine.generate(prompt, **options)[0].token_ids for prompt in prompts]
    ids = [engine.tokenizer.encode(prompts[0])[0]]
    for prompt, tokens in zip(prompts, alone, strict=True):
        ids = engine.tokenizer.encode(prompt)
        for token in tokens:
            assert token == int(np.argmax(expected_logits(ids)[-1]))
            ids.append(token)
    with load(toy_artifact, threads=1, kv_budget_bytes=32 * 14) as starved:
        together = [completion.token_ids for completion in starved.generate(prompts, **options)]
        assert starved.stats.preemptions > 0
    assert together == alone


def test_the_library_finds_the_same_tokens(toy_artifact: Path, tmp_path: Path) -> None:
    """Logits of a step for which only ids were asked are never looked at."""
    newer = tmp_path / "newer.inferc"
    write_artifact(newer, partial(fill_toy, abi=4))
    prompts, options = ["Hello", "Hello, world", "z"], {"max_tokens": 12, "ignore_eos": True}
    with load(toy_artifact, threads=1) as engine:
        expected = [completion.token_ids for completion in engine.generate(prompts, **options)]
    with load(newer, threads=1) as engine:
        made = engine.executor
        assert isinstance(made, CpuExecutor) and made.finds_greedy
        run, used = made.greedy, []
        made.greedy = lambda plan, end: used.append(end) or run(plan, end)  # type: ignore[method-assign]
        found = [completion.token_ids for completion in engine.generate(prompts, **options)]
    assert found == expected and set(used) == {VOCAB}


def test_artifact_brings_template_and_defaults(toy_artifact: Path) -> None:
    engine = load(toy_artifact, threads=1)
    ids = engine.chat_prompt([{"role": "user", "content": "hi"}])
    assert engine.tokenizer.decode(ids, False) == "<s>[user]hi"
    assert engine.defaults.temperature == 0 and engine.defaults.top_k is None
    assert engine.manifest is not None and engine.manifest.model.name == "toy"
    engine.close()
    engine.close()


def executor(folder: Path, **changes: object) -> CpuExecutor:
    manifest = replace(read_manifest(folder), **changes)
    budget = kv_budget(manifest.kv, manifest.limits, 32 * 8)
    return CpuExecutor(folder, manifest, budget, 1)


def test_plans_beyond_the_limits_do_not_run(toy_artifact: Path) -> None:
    cpu = executor(toy_artifact)
    entry = PlannedSequence(SequenceId(0), 0, (1,) * 17, tuple(range(5)), Rows.LAST, 0)
    with pytest.raises(
        InfercError, match="expected 1 to 16 tokens of at most 4 sequences, found 17"
    ):
        cpu.run(Plan(1, (entry,)))


def test_inconsistent_artifacts_are_refused(toy_artifact: Path) -> None:
    kv = toy_manifest().kv
    with pytest.raises(ArtifactError, match=r"kv\.page_bytes: expected 32 from the caches listed"):
        executor(toy_artifact, kv=replace(kv, page_bytes=16))
    with pytest.raises(
        ArtifactError, match=r"kv\.dtype: expected one of f32, .*, f8e4m3, i8, found 'q8'"
    ):
        executor(toy_artifact, kv=replace(kv, dtype="q8"))
    weights = toy_manifest().weights
    for offset, message in ((4, "not a multiple of 64"), (128, "is truncated")):
        moved = replace(weights.tensors[0], offset_bytes=offset)
        with pytest.raises(ArtifactError, match=message):
            executor(toy_artifact, weights=replace(weights, tensors=(moved,)))


def test_broken_libraries_are_refused(toy_artifact: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(toy_artifact, tmp_path / "broken.inferc"))
    (broken / "cpu/step.so").write_bytes(b"nonsense")
    with pytest.raises(ArtifactError, match="the file is damaged"):
        load(broken)
    with pytest.raises(ArtifactError, match="the step library cannot be loaded"):
        load(broken, check=False)


def test_kv_budget() -> None:
    kv = KvPlan(32, "f32", 1000, 32_000, ())
    limits = Limits(512, 64, 8192)
    assert kv_budget(kv, limits).tokens == 16_384
    assert kv_budget(kv, Limits(512, 2, 1000)).tokens == 2016
    assert kv_budget(kv, limits, 10**6).pages == 31
    assert "31 pages, 1 MiB (as asked for)" in str(kv_budget(kv, limits, 10**6))
    huge = KvPlan(32, "f32", 10**9, 32 * 10**9, ())
    with pytest.raises(RequestError, match="expected at least one page of 32000000000 bytes"):
        kv_budget(huge, limits, 10**6)
    greedy = kv_budget(KvPlan(32, "f32", 10**7, 32 * 10**7, ()), limits)
    assert greedy.tokens < 16_384 and "quarter" in greedy.reason


def test_loading_imports_nothing_heavy(toy_artifact: Path) -> None:
    code = (
        "import sys; from inferc.runtime.engine import load; e = load(sys.argv[1], threads=1);"
        "e.generate('a', max_tokens=2);"
        "heavy = {'torch', 'transformers', 'rich', 'jinja2', 'tvm', 'networkx', 'inferc.ir',"
        " 'inferc.passes', 'inferc.codegen', 'inferc.frontend'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code, str(toy_artifact)], check=True)


def test_engine_is_an_engine(toy_artifact: Path) -> None:
    assert isinstance(load(toy_artifact, threads=1), Engine)
