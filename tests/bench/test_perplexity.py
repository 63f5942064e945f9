"""`bench.perplexity`: the arithmetic, windows, rows and the table, with made-up engines."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest

from bench import perplexity as bench
from bench.peers_cpu.gguf_tools import convert
from bench.perplexity_models import CASES, EXACT, ROUNDED, Case


def row(**more: Any) -> dict[str, Any]:
    return {
        "model": "M", "weights": "Q4_1", "options": "defaults", "path": bench.CHUNKS,
        "tokens": 2048, "perplexity": 10.005, "reference": 10.0, "relative": 5e-4, "limit": EXACT,
    } | more  # fmt: skip


def test_equal_logits_make_the_size_of_the_vocabulary() -> None:
    ids = list(range(300))
    total = bench.negative_log_likelihood(np.zeros((300, 512), np.float32), ids)
    assert total == pytest.approx(299 * math.log(512))
    assert bench.perplexity([total], [ids]) == pytest.approx(512)


def test_likelihoods_are_those_of_a_float64_softmax() -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 64, 200).tolist()
    logits = (rng.standard_normal((200, 64)) * 5 + 80).astype(np.float32)
    wide = logits.astype(np.float64)
    share = np.exp(wide) / np.exp(wide).sum(axis=1, keepdims=True)
    wanted = -np.log([share[i, ids[i + 1]] for i in range(199)]).sum()
    assert bench.negative_log_likelihood(logits, ids) == pytest.approx(wanted, rel=1e-6)


def test_the_last_row_of_logits_is_not_scored() -> None:
    logits = np.zeros((3, 8), np.float32)
    logits[2] = np.nan
    assert bench.negative_log_likelihood(logits, [1, 2, 3]) == pytest.approx(2 * math.log(8))


@pytest.mark.parametrize("add_bos", [False, True])
def test_windows_begin_with_bos_where_the_model_wants_one(add_bos: bool) -> None:
    ids = ([7] if add_bos else []) + list(range(100, 100 + 4 * bench.WINDOW_TOKENS))
    tokenizer: Any = SimpleNamespace(
        encode=lambda text: ids, facts=SimpleNamespace(add_bos=add_bos)
    )
    windows = bench.text_windows(tokenizer, 3 * bench.WINDOW_TOKENS)
    assert [len(window) for window in windows] == [bench.WINDOW_TOKENS] * 3
    assert all(window[0] == 7 for window in windows) is add_bos
    body = [token for window in windows for token in window[add_bos:]]
    assert body == list(range(100, 100 + len(body)))  # nothing twice, nothing left out
    with pytest.raises(SystemExit, match="expected"):
        bench.text_windows(tokenizer, 5 * bench.WINDOW_TOKENS)


def test_limits_follow_the_arithmetic() -> None:
    assert Case("M", "Q4_1").limit == Case("M", "Q4_1", (("kv_dtype", "i8"),)).limit == EXACT
    assert Case("M", "Q4_1", (("compute", "int8"),)).limit == ROUNDED
    assert Case("M", "Q4_1", (("kv_dtype", "f16"),)).label == "--kv-dtype f16"
    assert not Case("M", "Q4_1", (("no_such_option", "x"),)).known
    assert all(case.known for case in CASES if dict(case.options).keys() <= {"compute"})


def test_rows_are_replaced_by_newer_ones() -> None:
    rows = [row(), row(path=bench.DECODE)]
    newer = row(perplexity=10.0)
    assert bench.merged(rows, newer) == [newer, rows[1]]
    other = row(weights="bf16")
    assert bench.merged(rows, other) == [*rows, other]


def test_the_table_says_what_is_outside_its_limit() -> None:
    rows = [row(), row(relative=-2e-3), row(relative=-2e-3, limit=ROUNDED)]
    text = bench.report(rows)
    lines = [line for line in text.splitlines() if line.startswith("| M")]
    assert [line.endswith("| **no** |") for line in lines] == [False, True, False]
    assert "+0.0500%" in lines[0]


@pytest.mark.parametrize("kind", ["Q8_0", "BF16"])
def test_converted_weights_keep_names_shapes_and_vectors(kind: str, tmp_path: Path) -> None:
    stored, target = tmp_path / "a.gguf", tmp_path / "b.gguf"
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((4, 64)).astype(np.float32)
    vector = rng.standard_normal(64).astype(np.float32)
    writer = gguf.GGUFWriter(stored, "llama")
    writer.add_uint32("llama.block_count", 3)
    writer.add_array("some.names", ["a", "b"])
    q4_1 = gguf.GGMLQuantizationType.Q4_1
    writer.add_tensor("matrix", gguf.quantize(matrix, q4_1), raw_dtype=q4_1)
    writer.add_tensor("vector", vector)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    convert(stored, target, kind)
    reader = gguf.GGUFReader(target)
    found = {t.name: t for t in reader.tensors}
    assert reader.fields["llama.block_count"].contents() == 3
    assert reader.fields["some.names"].contents() == ["a", "b"]
    assert found["matrix"].tensor_type.name == kind
    assert found["matrix"].shape.tolist() == [64, 4]
    values = gguf.dequantize(found["matrix"].data, found["matrix"].tensor_type)
    wanted = gguf.dequantize(gguf.quantize(matrix, q4_1), q4_1)
    assert np.abs(values - wanted).max() < 0.02 * np.abs(wanted).max()
    np.testing.assert_array_equal(found["vector"].data, vector)
