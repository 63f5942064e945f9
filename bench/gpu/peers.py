"""Other engines on the same shapes: torch.compile with SDPA, transformers' continuous batching.

Run as a process of its own: `python -m bench.gpu.peers ENGINE MODEL JSON`.
"""

from __future__ import annotations

import inspect
import json
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.gpu.limits import wait
from bench.gpu.workloads import MODELS, Workload, mixed_requests

WARM_STEPS, STEPS, CHUNK_TOKENS = 5, 20, 8192


def make_model(config: dict[str, Any], device: str, attention: str) -> Any:
    """A model of transformers with random weights, made on the device."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = {k: v for k, v in config.items() if k != "model_type"}
    chosen = AutoConfig.for_model(config["model_type"], **settings)
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(
            chosen, attn_implementation=attention, dtype=torch.bfloat16
        )
    return model.eval()


class CompiledSdpa:
    """torch.compile of the forward over a static cache; attention by SDPA."""

    attention = "sdpa"

    def __init__(self, model: Any, device: str) -> None:
        import torch

        self.model, self.device = model, device
        self.step = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)

    def run(self, workload: Workload) -> dict[str, Any]:
        """Seconds of a workload."""
        import torch

        if workload.kind == "mixed":
            return {"seconds": None, "note": "one length at a time"}
        with torch.inference_mode():
            work = self._decode if workload.kind == "decode" else self._prefill
            return work(workload)

    def _decode(self, workload: Workload) -> dict[str, Any]:
        batch, context = workload.batch, workload.context_tokens
        cache = self._cache(context + WARM_STEPS + STEPS)
        ids = self._ids(batch, context - 1)
        most = max(CHUNK_TOKENS // batch, 1)
        for start in range(0, context - 1, most):
            self._forward(self.model.forward, ids[:, start : start + most], cache)
        one = ids[:, :1].contiguous()
        times = [_timed(lambda: self._forward(self.step, one, cache), self.device)
                 for _ in range(WARM_STEPS + STEPS)]  # fmt: skip
        return {"seconds": float(np.median(times[WARM_STEPS:])), "tokens": batch}

    def _prefill(self, workload: Workload) -> dict[str, Any]:
        ids = self._ids(1, workload.context_tokens)
        times = []
        for _ in range(3):
            cache = self._cache(workload.context_tokens)
            times.append(
                _timed(lambda c=cache: self._forward(self.step, ids, c), self.device)  # type: ignore[misc]
            )
        return {"seconds": min(times[1:]), "tokens": workload.context_tokens}

    def _cache(self, tokens: int) -> Any:
        from transformers import StaticCache

        return StaticCache(config=self.model.config, max_cache_len=tokens)

    def _ids(self, batch: int, tokens: int) -> Any:
        import torch

        return torch.randint(0, 1000, (batch, tokens), device=self.device)

    def _forward(self, forward: Callable[..., Any], ids: Any, cache: Any) -> Any:
        names = inspect.signature(self.model.forward).parameters
        name = "cache" if "cache" in names else "past_key_values"
        return forward(input_ids=ids, **{name: cache}, use_cache=True, logits_to_keep=1).logits


class ContinuousBatching:
    """transformers' own engine: paged attention, a scheduler, CUDA graphs."""

    attention = "sdpa"

    def __init__(self, model: Any, device: str) -> None:
        self.model, self.device = model, device

    def run(self, workload: Workload) -> dict[str, Any]:
        """Seconds of a workload: of decode the median between tokens when all are running."""
        if workload.kind == "mixed":
            return self._mixed(workload)
        answer = WARM_STEPS + STEPS if workload.kind == "decode" else 1
        prompts = _prompts([workload.context_tokens - answer] * workload.batch)
        start, times = self._generate(prompts, answer)
        if workload.kind == "prefill":
            return {"seconds": times[0][0] - start, "tokens": workload.context_tokens}
        gaps = np.diff(np.array([t[-STEPS:] for t in times]), axis=1)
        return {"seconds": float(np.median(gaps)), "tokens": workload.batch}

    def _mixed(self, workload: Workload) -> dict[str, Any]:
        requests = mixed_requests(workload)
        # One limit for all answers: what is beyond a request's own is not counted.
        answer = max(a for _, a in requests)
        start, times = self._generate(_prompts([p for p, _ in requests]), answer)
        end = max(t[a - 1] for t, (_, a) in zip(times, requests, strict=True))
        return {
            "seconds": end - start, "tokens": sum(a for _, a in requests),
            "note": "answers of equal length",
        }  # fmt: skip

    def _generate(self, prompts: list[list[int]], answer: int) -> tuple[float, list[list[float]]]:
        """When the requests were handed in to a warm engine, and when each token of each came."""
        from transformers import GenerationConfig

        config = GenerationConfig(max_new_tokens=answer, do_sample=False, eos_token_id=-1)
        with self.model.continuous_batching_context_manager(generation_config=config) as manager:
            _collect(manager, [prompts[0][:16]], min(answer, 4))
            start = time.perf_counter()
            times = _collect(manager, prompts, answer)
        return start, times


def _collect(manager: Any, prompts: list[list[int]], answer: int) -> list[list[float]]:
    """Times of all tokens, in the order of the prompts."""
    names = manager.add_requests(inputs=prompts, max_new_tokens=answer, record_timestamps=True)
    found: dict[str, list[float]] = {}
    while len(found) < len(prompts):
        result = manager.get_result(timeout=1)
        if result is None and not manager.is_running():
            raise RuntimeError("its engine stopped")
        if result is not None and result.is_finished():
            found[result.request_id] = result.timestamps or []
    if any(len(times) != answer for times in found.values()):
        raise RuntimeError("not every request was answered in full")
    return [found[name] for name in names]


ENGINES = {"torch.compile + SDPA": CompiledSdpa, "transformers paged": ContinuousBatching}


def measure(
    name: str, config: dict[str, Any], device: str, workloads: list[Workload]
) -> list[dict[str, Any]]:
    """Seconds of each workload, or why it did not run."""
    kind = ENGINES[name]
    engine = kind(make_model(config, device, kind.attention), device)
    rows = []
    for workload in workloads:
        try:
            result = engine.run(workload)
        except Exception as error:  # of a peer: whatever it is, it belongs in the table
            result = {"seconds": None, "note": f"{type(error).__name__}: {error}"[:160]}
        rows.append({"workload": str(workload)} | result)
    return rows


def _timed(work: Callable[[], object], device: str) -> float:
    wait(device)
    start = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - start


def _prompts(lengths: list[int]) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(1000) for _ in range(length)] for length in lengths]


def main() -> None:
    """Measure what the parent asks for, print JSON as the last line."""
    name, model, asked = sys.argv[1], MODELS[sys.argv[2]], json.loads(sys.argv[3])
    workloads = [Workload(**w) for w in asked["workloads"]]
    print(json.dumps(measure(name, model.config(), asked["device"], workloads)))


if __name__ == "__main__":
    main()
