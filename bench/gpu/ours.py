"""inferc's own figures: steps of given sizes by the executor, a mixed load by the engine.

Run as a process of its own: `python -m bench.gpu.ours ARTIFACT JSON`.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.gpu.checkpoint import write_awq
from bench.gpu.workloads import PAGE_TOKENS, STEP_TOKENS, Model, Workload, mixed_requests

if TYPE_CHECKING:
    from inferc.runtime.engine import Engine
    from inferc.runtime.plan import Plan

WARM_STEPS, STEPS = 3, 20
IDS = 250  # tokens of prompts are below: every vocabulary has them


def compile_model(model: Model, scratch: Path, target: str, workloads: Sequence[Workload]) -> Path:
    """An artifact of a model's shape. Its weights are zeros, for `measure` to overwrite."""
    import inferc
    from bench.sparse_checkpoint import write_checkpoint

    source, output = scratch / f"{model.name}-source", scratch / f"{model.name}.inferc"
    if model.bits == 4:
        write_awq(source, model.shape, model.config())
    else:
        write_checkpoint(source, model.shape, model.config())
    inferc.compile(
        source, output, target=target, kv_dtype="bf16", page_tokens=PAGE_TOKENS, tvm=False,
        step_tokens=STEP_TOKENS, sequences=max(w.batch for w in workloads),
        context_tokens=max(w.context_tokens for w in workloads) + 1024, overwrite=True,
        fast_prefill=True,
    )  # fmt: skip
    return output


def measure(artifact: Path, device: str, workloads: Sequence[Workload]) -> list[dict[str, Any]]:
    """Seconds of each workload, with the bytes and flops that it needs; or why it did not run."""
    import inferc

    rows = []
    with inferc.load(artifact, device=device, check=False, prefix_cache=False) as engine:
        randomise(engine)
        for workload in workloads:
            row = {"workload": str(workload), **needs(artifact, workload)}
            try:
                rows.append(row | run(engine, workload))
                rows += parts(engine, artifact, workload)
            except inferc.errors.InfercError as error:
                rows.append(row | {"seconds": None, "note": str(error)})
    return rows


def randomise(engine: Engine) -> None:
    """Weights as a new model's: zeros would take less power, and send all tokens to one expert."""
    executor: Any = engine.executor
    if not hasattr(executor, "overwrite_weights"):
        return
    values = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32) * 0.02
    executor.overwrite_weights((values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8))


def run(engine: Engine, workload: Workload, steps: int = STEPS) -> dict[str, Any]:
    """One workload."""
    if workload.kind == "mixed":
        return _mixed(engine, workload)
    pages = -(-workload.context_tokens // engine.executor.page_tokens)
    there = engine.executor.total_blocks
    if pages * workload.batch > there:
        tokens = there * engine.executor.page_tokens
        return {"seconds": None, "note": f"does not fit: room for {tokens} tokens"}
    plans = step_plans(engine, workload)
    seconds = _median(lambda: [engine.executor.run(plan) for plan in plans], steps)
    tokens = workload.batch if workload.kind == "decode" else workload.context_tokens
    return {"seconds": seconds, "tokens": tokens}


def step_plans(engine: Engine, workload: Workload) -> list[Plan]:
    """The steps of a decode or prefill workload."""
    pages = -(-workload.context_tokens // engine.executor.page_tokens)
    if workload.kind == "decode":
        return decode_plans(workload, pages)
    return prefill_plans(workload, pages, engine.scheduler.config.step_tokens)


def decode_plans(workload: Workload, pages: int) -> list[Plan]:
    """The same step again and again: each sequence at the end of its context, on its own pages."""
    from inferc.runtime.plan import Plan

    entries = tuple(
        _entry(i, workload.context_tokens - 1, (11 * i % IDS,), pages)
        for i in range(workload.batch)
    )
    return [Plan(1, entries)]


def prefill_plans(workload: Workload, pages: int, step_tokens: int) -> list[Plan]:
    """A prompt in as few steps as the artifact allows."""
    from inferc.runtime.plan import Plan

    rng = random.Random(0)
    ids = [rng.randrange(IDS) for _ in range(workload.context_tokens)]
    return [
        Plan(1, (_entry(0, start, tuple(ids[start : start + step_tokens]), pages),))
        for start in range(0, len(ids), step_tokens)
    ]


def _entry(number: int, start: int, ids: tuple[int, ...], pages: int) -> Any:
    from inferc.runtime.block_manager import BlockId
    from inferc.runtime.plan import PlannedSequence, Rows
    from inferc.runtime.request import SequenceId

    blocks = tuple(BlockId(number * pages + page) for page in range(pages))
    return PlannedSequence(SequenceId(number), start, ids, blocks, Rows.LAST, number)


def _median(work: Callable[[], object], steps: int) -> float:
    times = []
    for _ in range(WARM_STEPS + steps):
        start = time.perf_counter()
        work()  # waits for the logits
        times.append(time.perf_counter() - start)
    return float(np.median(times[WARM_STEPS:]))


def _mixed(engine: Engine, workload: Workload) -> dict[str, Any]:
    """All requests at once, to the last token."""
    rng = random.Random(0)
    start, tokens = time.perf_counter(), 0
    for prompt, answer in mixed_requests(workload):
        ids = [rng.randrange(IDS) for _ in range(prompt)]
        engine.add_request(ids, max_tokens=answer, ignore_eos=True)
    while engine.has_work:
        tokens += sum(event.token is not None for event in engine.step())
    return {"seconds": time.perf_counter() - start, "tokens": tokens}


PARTS = {
    "attention": ("attention",),
    "products": ("linear", "glu_linear", "experts", "head_linear"),
}
"""Kinds of kernels, as reports name them, by what is shown of them."""


def parts(engine: Engine, artifact: Path, workload: Workload) -> list[dict[str, Any]]:
    """Time, bytes and flops of attention and of products, each launch timed by itself.

    Of a prompt the last step is taken.
    """
    executor: Any = engine.executor
    if workload.kind == "mixed" or not hasattr(executor, "profile"):
        return []
    plan = step_plans(engine, workload)[-1]
    executor.profile(plan)
    times = executor.profile(plan)
    step = _step(workload, plan.tokens)
    return [
        {"workload": f"{workload}: {part}"} | _sum(artifact, workload.kind, step, times, kinds)
        for part, kinds in PARTS.items()
    ]


def _sum(artifact: Path, phase: str, step: Any, times: Any, kinds: Sequence[str]) -> dict[str, Any]:
    from inferc.report import model

    kernels = model.load(artifact)["phases"][phase]["kernels"]
    chosen = [i for i, k in enumerate(kernels) if k["kind"].startswith(tuple(kinds))]
    spent = [t.milliseconds for t in times if t.call in set(chosen)]
    sizes = {
        name: float(sum(model.size(kernels[i][name], step) for i in chosen))
        for name in ("bytes_read", "bytes_written", "flops")
    }
    return {
        "seconds": sum(spent) / 1e3 if spent else None,
        "tokens": step.tokens,
        "must_move_bytes": sizes["bytes_read"] + sizes["bytes_written"],
        "flops": sizes["flops"],
        "note": "" if spent else "no such kernel",
    }


def _step(workload: Workload, tokens: int) -> Any:
    """A step as the report's formulas take it: of a prompt its last `tokens`."""
    from inferc.ir.cost import Workload as Step

    if workload.kind == "decode":
        return Step.decode(workload.batch, workload.context_tokens)
    return Step(tokens, 1, workload.context_tokens)


def needs(artifact: Path, workload: Workload) -> dict[str, float]:
    """Bytes that must move and flops, by the formulas of the report."""
    from inferc.report import model
    from inferc.report.machines import MACHINES

    if workload.kind == "mixed":
        return {}
    report = model.load(artifact)
    step = _step(workload, workload.context_tokens)
    phase = model.phase(report, workload.kind, step, MACHINES["h200"])
    return {"must_move_bytes": float(phase.must_move_bytes), "flops": float(phase.flops)}


def main() -> None:
    """Measure what the parent asks for, print JSON."""
    import inferc.errors  # noqa: F401

    artifact, asked = Path(sys.argv[1]), json.loads(sys.argv[2])
    workloads = [Workload(**w) for w in asked["workloads"]]
    print(json.dumps(measure(artifact, asked["device"], workloads)))


if __name__ == "__main__":
    main()
