"""The scheduler under load without a machine: a clock that a cost model moves.

    python -m bench.serving_simulation [--rate 1.0] [--limits 512 256 128 64]

Policies are compared on the same requests with no noise: a step costs its weights once and each of
its rows (`StepCost`), and nothing else happens. What a policy costs a real engine is measured by
`bench.serving`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from bench.serving_load import Load, Request, poisson, requests
from bench.serving_metrics import Answer, summary
from inferc.runtime.block_manager import BlockManager
from inferc.runtime.plan import Plan, Rows
from inferc.runtime.request import Sampled, SequenceId
from inferc.runtime.request import Sequence as Served
from inferc.runtime.scheduler import Scheduler
from inferc.runtime.scheduler_config import SchedulerConfig

PAGE_TOKENS = 32


@dataclass(frozen=True)
class StepCost:
    """Seconds of a step: `weights_s` once, `prompt_row_s` or `decode_row_s` for each row."""

    weights_s: float
    prompt_row_s: float
    decode_row_s: float

    def of(self, plan: Plan) -> float:
        """Seconds of one step."""
        decodes = sum(entry.length == 1 for entry in plan.sequences)
        prompts = plan.tokens - decodes
        return self.weights_s + prompts * self.prompt_row_s + decodes * self.decode_row_s


def simulate(
    asked: Sequence[Request], config: SchedulerConfig, cost: StepCost, kv_tokens: int
) -> list[Answer]:
    """Answers in the order of `asked`, by the clock of the cost model."""
    scheduler = Scheduler(config, BlockManager(kv_tokens // PAGE_TOKENS, PAGE_TOKENS))
    due = sorted(range(len(asked)), key=lambda i: asked[i].arrival_s)
    times: dict[int, list[float]] = {i: [] for i in due}
    tokens = count(1)  # no two answers share a prefix by accident
    now = 0.0
    while due or scheduler.has_work:
        if not scheduler.has_work:
            now = max(now, asked[due[0]].arrival_s)
        while due and asked[due[0]].arrival_s <= now:
            number = due.pop(0)
            scheduler.add(_sequence(number, asked[number]))
        plan = scheduler.plan()
        now += cost.of(plan)
        wanted = [entry.sequence for entry in plan.sequences if entry.rows is Rows.LAST]
        sampled = {sequence: Sampled(-next(tokens)) for sequence in wanted}
        for output in scheduler.commit(plan, sampled):
            times[output.sequence].append(now)
    return [Answer(r.arrival_s, len(r.prompt), tuple(times[i])) for i, r in enumerate(asked)]


def _sequence(number: int, request: Request) -> Served:
    prompt = list(request.prompt)
    longest = len(prompt) + request.answer_tokens
    return Served(SequenceId(number), len(prompt), prompt, longest, frozenset(), 0, None)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--rate", type=float, default=0.5, help="requests a second")
    p.add_argument("--requests", type=int, default=200)
    p.add_argument("--limits", type=int, nargs="+", default=(512, 256, 128, 64, 32))
    p.add_argument("--weights-ms", type=float, default=6.5)
    p.add_argument("--prompt-row-ms", type=float, default=2.0)
    p.add_argument("--decode-row-ms", type=float, default=2.5)
    args = p.parse_args()
    cost = StepCost(args.weights_ms / 1e3, args.prompt_row_ms / 1e3, args.decode_row_ms / 1e3)
    asked = poisson(requests(Load(args.requests, 49152)), args.rate, seed=0)
    for limit in args.limits:
        config = SchedulerConfig(512, 64, 4096, mixed_prompt_tokens=limit)
        row = summary(simulate(asked, config, cost, kv_tokens=16384), None)
        shown = {name: row[name] for name in ("tokens_per_s", "ttft_s", "tpot_s", "longest_gap_s")}
        print(f"{limit:4} {shown}")


if __name__ == "__main__":
    main()
