"""Calls that each worker runs whole, for few rows: the same bits, and a barrier less each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from inferc.codegen import own_rows
from tests.codegen.step_runner import Compiled, make_batch, random_params
from tests.codegen.test_step import PAGE, PAGES, TABLES, fused, ids

NORM_ROWS = 4
"""Rows up to which workers of `few` run norms whole."""


def compiled(name: str, folder: Path, limit_bytes: int, tvm: bool = True) -> Compiled:
    """Three workers, with another limit than the code has."""
    module = fused(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_rows, "OWN_BYTES", limit_bytes)
        return Compiled(module, random_params(module), folder, PAGES, tvm=tvm, threads=3)


def most_moved_bytes(step: Compiled, rows: int) -> int:
    """What the largest of a step's own calls moves with so many rows."""
    names = {"a.tokens": str(rows), "a.sequences": str(rows), "a.logit_rows": str(rows)}
    found = []
    for phase in step.generated.step.phases:
        for text in phase.own_moved_bytes:
            for name, number in names.items():
                text = text.replace(name, number)
            found.append(int(eval(text, {})))  # sums of products of numbers
    return max(found)


@pytest.mark.parametrize("name", ["gemma2", "llama", "olmo2"])
def test_bits_are_those_of_shared_rows(name: str, tmp_path: Path) -> None:
    """Below and above the limit, and in a library that has no such calls."""
    folders = [tmp_path / part for part in ("default", "few", "none")]
    for folder in folders:
        folder.mkdir()
    default = compiled(name, folders[0], own_rows.OWN_BYTES)
    few = compiled(name, folders[1], most_moved_bytes(default, NORM_ROWS))
    none = compiled(name, folders[2], 0)
    assert all(phase.own_slots for phase in few.generated.step.phases)
    assert not any(phase.own_slots for phase in none.generated.step.phases)
    text = ids(PAGE + 9, seed=7)
    cached = 0
    for new in (1, NORM_ROWS, NORM_ROWS + 1, 1, 12):
        rows = range(new)
        step = make_batch(
            [new], [cached], TABLES[:1], PAGE, text[cached : cached + new], rows
        )  # fmt: skip
        phase = "decode" if new == 1 else "prefill"
        wanted = none.step(phase, step)
        for _ in range(5):  # workers meet differently each time
            np.testing.assert_array_equal(few.step(phase, step), wanted)
            np.testing.assert_array_equal(default.step(phase, step), wanted)
        cached += new
    for step_library in (default, few, none):
        step_library.close()


@pytest.mark.parametrize("tvm", [True, False])
def test_readers_of_own_rows_do_not_wait(tvm: bool, tmp_path: Path) -> None:
    step = compiled("llama", tmp_path, own_rows.OWN_BYTES, tvm)
    for phase in step.generated.step.phases:
        assert any(call.own for call in phase.calls)
        for call, reader in zip(phase.calls, phase.calls[1:], strict=False):
            if call.own:
                assert call.own_barrier and reader.barrier and not reader.own_barrier
    step.close()


def test_large_rows_are_shared(tmp_path: Path) -> None:
    """A call that moves more than the limit with a single row is none of them."""
    step = compiled("llama", tmp_path, 64)
    assert not any(call.own for phase in step.generated.step.phases for call in phase.calls)
    step.close()
