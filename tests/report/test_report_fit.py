"""What fits into a machine, by arithmetic that can be followed."""

from __future__ import annotations

from typing import Any

import pytest
from sample_report import report

from inferc.ir.cost import Workload
from inferc.report import model
from inferc.report.fit import fit, fixed_bytes
from inferc.report.machines import MACHINES, Machine, uniform

RATES = {"f32": 1e6, "bf16": 4e6}
# weights, arena, states of 64 sequences
FIXED = 20000 + 999_700 + 64 * 128


def sized(memory_bytes: int) -> Machine:
    return Machine("m", 1e9, RATES, memory_bytes)


def planned(**changes: Any) -> dict[str, Any]:
    return report() | {"options": {"sequences": 64}} | changes


def test_whole_pages_of_what_is_left() -> None:
    found = fit(planned(), sized(FIXED + 2 * 4096 + 4095))
    assert found is not None and found.fits
    assert (found.fixed_bytes, found.kv_tokens, found.machines) == (FIXED, 16, 1)


def test_exactly_full_and_one_byte_short() -> None:
    full, short = fit(planned(), sized(FIXED)), fit(planned(), sized(FIXED - 1))
    assert full is not None and short is not None
    assert (full.fits, full.kv_tokens) == (True, 0)
    assert (short.fits, short.kv_tokens, short.machines) == (False, 0, 2)


def test_without_attention_context_costs_nothing() -> None:
    kv = report()["kv"] | {"bytes_per_token": 0, "page_bytes": 0}
    found = fit(planned(kv=kv), sized(FIXED))
    assert found is not None and found.fits and found.kv_tokens is None


def test_unknown_memory_says_nothing() -> None:
    assert fit(planned(), uniform("x", 1, 1)) is None


def test_reports_of_earlier_versions() -> None:
    earlier = planned()
    del earlier["states"], earlier["memory"]["scratch_bytes"]
    assert fixed_bytes(earlier) == 20000 + 999_700


def test_rates_follow_the_type() -> None:
    machine = Machine("m", 1e30, RATES | {"f8": 8e6})
    rates = {
        kind: machine.rate(kind) for kind in ("f32", "bf16", "f16", "q4_k", "f8_g128", "mxfp4")
    }
    assert rates == {"f32": 1e6, "bf16": 4e6, "f16": 4e6, "q4_k": 4e6, "f8_g128": 8e6, "mxfp4": 4e6}
    result = model.phase(report(), "decode", Workload.decode(1, 10), machine)
    us = {k.name: k.predicted_us / k.flops for b in result.blocks for k in b.kernels}
    assert us["norm_1"] == pytest.approx(1) and us["linear_1"] == pytest.approx(1 / 4)


def test_records_are_plausible_and_sourced() -> None:
    gpus = [m for m in MACHINES.values() if m.memory_bytes is not None]
    assert {m.name for m in gpus} >= {"a100", "h100", "h200", "b200", "rtx4090"}
    for m in gpus:
        assert m.source and m.title
        assert m.flops_per_second["f32"] < m.flops_per_second["bf16"]
        assert 1e11 < m.bytes_per_second < 1e13 and m.memory_bytes is not None
