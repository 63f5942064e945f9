"""inferc, through the calls that a server makes."""

from __future__ import annotations

import time
from typing import Any


class Engine:
    def __init__(self, model: str, threads: int, options: dict[str, str]) -> None:
        del options  # they chose the artifact
        self.model, self.threads = model, threads

    def prepare(self) -> None:
        import inferc

        self.api: Any = inferc
        _ = inferc.load, inferc.SamplingParams  # imported on first use

    def version(self) -> str:
        return f"inferc {self.api.__version__}"

    def load(self) -> None:
        self.engine = self.api.load(self.model, threads=self.threads)
        self.vocab = self.engine.manifest.model.vocab_size

    def run(self, prompts: list[list[int]], new: int) -> tuple[float, float, list[list[int]], int]:
        params = self.api.SamplingParams(max_tokens=new + 1, ignore_eos=True)
        tokens: dict[int, list[int]] = {}
        begin = time.perf_counter()
        order = [self.engine.add_request(ids, params) for ids in prompts]
        middle, late = begin, 0
        while self.engine.has_work:
            all_started = len(tokens) == len(prompts)
            for event in self.engine.step():
                if event.token is not None:
                    tokens.setdefault(event.request, []).append(event.token)
                    late += all_started
            if not all_started:
                middle = time.perf_counter()
        end = time.perf_counter()
        return middle - begin, end - middle, [tokens[request] for request in order], late
