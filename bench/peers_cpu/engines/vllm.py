"""vLLM's CPU build, stepped by hand in this process; `model` is a Hugging Face folder."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any


class Engine:
    def __init__(self, model: str, threads: int, options: dict[str, str]) -> None:
        self.model, self.threads, self.options = model, threads, options
        self.requests = 0

    def prepare(self) -> None:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"  # GiB
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{self.threads - 1}"
        os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
        os.environ["VLLM_NO_USAGE_STATS"] = "1"
        import vllm

        self.api = vllm

    def version(self) -> str:
        return f"vllm {self.api.__version__}"

    def load(self) -> None:
        made = self.api.LLM(
            self.model, dtype="bfloat16", max_model_len=4096, max_num_seqs=32,
            max_num_batched_tokens=4096, enable_prefix_caching=False, disable_log_stats=True,
        )  # fmt: skip
        self.engine: Any = made.llm_engine
        self.vocab = json.loads((Path(self.model) / "config.json").read_text())["vocab_size"]

    def run(self, prompts: list[list[int]], new: int) -> tuple[float, float, list[list[int]], int]:
        params = self.api.SamplingParams(
            temperature=0, max_tokens=new + 1, ignore_eos=True, detokenize=False
        )
        begin = middle = time.perf_counter()
        order = []
        for ids in prompts:
            self.requests += 1
            order.append(str(self.requests))
            self.engine.add_request(order[-1], {"prompt_token_ids": ids}, params)
        tokens: dict[str, list[int]] = {}
        early = 0
        while self.engine.has_unfinished_requests():
            all_started = len(tokens) == len(prompts)
            for output in self.engine.step():
                # It appends a suffix of its own to the id.
                tokens[output.request_id.split("-")[0]] = list(output.outputs[0].token_ids)
            if not all_started:
                middle, early = time.perf_counter(), sum(map(len, tokens.values()))
        end = time.perf_counter()
        late = sum(map(len, tokens.values())) - early
        return middle - begin, end - middle, [tokens[request] for request in order], late
