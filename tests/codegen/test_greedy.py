"""The most likely tokens as the workers find them, beside numpy's."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator

import numpy as np
import pytest

from inferc.codegen.render import INCLUDE
from inferc.codegen.toolchain import COMMON_FLAGS, find_compiler
from tests.codegen.step_runner import Compiled, random_params
from tests.codegen.test_step import PAGES, batch, fused

SOURCE = """
#include "inferc/sampling.h"
using namespace inferc;
struct Job { Step step; int64_t vocab; };
static void work(void *job, int worker, int workers) {
    greedy_ids(static_cast<Job *>(job)->step, static_cast<Job *>(job)->vocab, worker, workers);
}
extern "C" INFERC_EXPORT int find(float *logits, int rows, int64_t vocab, int end, int threads,
                                  int32_t *ids) {
    inferc_step_args args = {};
    args.logit_rows = rows, args.logits = logits, args.greedy_ids = ids, args.greedy_end = end;
    StepPool *pool = step_pool_create(pool_defaults(threads), {size_t(8 * rows), 0});
    if (pool == nullptr) return 1;
    Job job = {step_begin(pool, &args), vocab};
    pool_run(pool->pool, work, &job);
    step_pool_destroy(pool);
    return 0;
}
"""
TARGETS = {"native": ("-march=native",), "portable": ()}


@pytest.fixture(scope="module", params=TARGETS)
def library(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("greedy")
    source, made = folder / "greedy.cpp", folder / "greedy.so"
    source.write_text(SOURCE)
    command = [
        *find_compiler().command, *COMMON_FLAGS, *TARGETS[request.param], "-shared", "-pthread",
        "-I", str(INCLUDE), str(source), "-o", str(made),
    ]  # fmt: skip
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(made))


def find(library: ctypes.CDLL, logits: np.ndarray, end: int, threads: int) -> list[int]:
    rows, vocab = logits.shape
    ids = np.full(rows + 1, -7, np.int32)
    code = library.find(
        ctypes.c_void_p(logits.ctypes.data), rows, ctypes.c_int64(vocab), end, threads,
        ctypes.c_void_p(ids.ctypes.data),
    )  # fmt: skip
    assert code == 0 and ids[rows] == -7
    return ids[:rows].tolist()


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("vocab", [1, 3, 16, 259, 4099])
def test_ids_are_those_of_argmax(library: ctypes.CDLL, vocab: int, threads: int) -> None:
    rng = np.random.default_rng(vocab)
    logits = rng.standard_normal((6, vocab)).astype(np.float32)
    logits[1] = np.round(logits[1])  # many equal ones, zeros of both signs
    logits[2] = -np.inf
    logits[3] = -(logits[3] ** 2) - 1
    logits[4] = np.where(rng.random(vocab) < 0.5, -0.0, 0.0)
    logits[5, vocab // 2] = np.inf
    for end in {1, max(1, vocab - 1), vocab, max(1, vocab // 2)}:
        expected = logits[:, :end].argmax(-1).tolist()
        assert find(library, logits, end, threads) == expected, end


@pytest.mark.parametrize("nan", [np.nan, -np.nan])
@pytest.mark.parametrize("at", [0, 700, 1500, 2999])
def test_nan_is_told(library: ctypes.CDLL, at: int, nan: float) -> None:
    logits = np.random.default_rng(0).standard_normal((3, 3000)).astype(np.float32)
    logits[1, at] = np.float32(nan)
    expected = logits.argmax(-1).tolist()
    assert find(library, logits, 3000, 2) == [expected[0], -1, expected[2]]
    if at:  # behind the last id of a token it does not matter
        assert find(library, logits, at, 2)[1] == logits[1, :at].argmax()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compiled]:
    module = fused("llama")
    folder = tmp_path_factory.mktemp("greedy_step")
    made = Compiled(module, random_params(module), folder, PAGES, threads=3)
    yield made
    made.close()


@pytest.mark.parametrize(("phase", "new"), [("prefill", (9, 4)), ("decode", (1, 1))])
def test_a_step_finds_them(compiled: Compiled, phase: str, new: tuple[int, ...]) -> None:
    rows = batch(new, (0, 0), 3)
    plain = compiled.step(phase, rows)
    for end in (1, compiled.vocab // 2, compiled.vocab):
        ids = np.full(3, -7, np.int32)
        assert np.array_equal(compiled.step(phase, rows, greedy=ids, greedy_end=end), plain)
        assert ids.tolist() == [*plain[:, :end].argmax(-1), -7]


@pytest.mark.parametrize("beyond", [-1, 0, 1])
def test_an_end_outside_the_vocabulary_is_refused(compiled: Compiled, beyond: int) -> None:
    end = compiled.vocab + beyond if beyond > 0 else beyond
    with pytest.raises(AssertionError, match="9"):
        compiled.step("decode", batch((1,), (0,), 3), greedy=np.zeros(1, np.int32), greedy_end=end)
