"""`bench.serving_simulation`: the clock of the cost model, and what a shorter mixed step buys."""

from __future__ import annotations

import pytest

from bench.serving_load import Load, Request, poisson, requests
from bench.serving_metrics import summary
from bench.serving_simulation import StepCost, simulate
from inferc.runtime.scheduler_config import SchedulerConfig

COST = StepCost(weights_s=1.0, prompt_row_s=0.1, decode_row_s=0.5)


def test_one_request_takes_what_its_steps_cost() -> None:
    config = SchedulerConfig(64, 4, 1024)
    (answer,) = simulate([Request((1,) * 10, 3, arrival_s=5.0)], config, COST, kv_tokens=1024)
    assert answer.token_times_s == pytest.approx((7.0, 8.5, 10.0))
    assert answer.ttft_s == pytest.approx(2.0)


def test_a_prompt_waits_for_the_step_that_runs() -> None:
    asked = [Request((1,) * 10, 2), Request((2,) * 10, 1, arrival_s=0.5)]
    config = SchedulerConfig(64, 4, 1024)
    first, second = simulate(asked, config, COST, kv_tokens=1024)
    # 1 + 10 * 0.1 for the first prompt; then one row of decode beside the second prompt.
    assert first.token_times_s == pytest.approx((2.0, 4.5))
    assert second.token_times_s == pytest.approx((4.5,))


def test_cutting_prompts_in_mixed_steps_makes_answers_smoother() -> None:
    asked = poisson(requests(Load(60, 1000)), 0.6, seed=0)
    cost = StepCost(0.0065, 0.002, 0.0025)
    rows = []
    for limit in (None, 128):
        config = SchedulerConfig(512, 64, 4096, mixed_prompt_tokens=limit)
        answers = simulate(asked, config, cost, kv_tokens=16384)
        assert [len(a.token_times_s) for a in answers] == [r.answer_tokens for r in asked]
        rows.append(summary(answers, None))
    whole, cut = rows
    assert cut["longest_gap_s"]["p99"] < whole["longest_gap_s"]["p99"] / 2
    # The price: an eighth here, 3 to 5 % in longer runs.
    assert cut["ttft_s"]["p90"] < 1.2 * whole["ttft_s"]["p90"]
    assert cut["tokens_per_s"] == pytest.approx(whole["tokens_per_s"], rel=0.01)
