"""ONNX Runtime GenAI; `model` is a folder made by its model builder."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

LEAST_CACHE_TOKENS = 640
"""A cache with a sliding window wants room for a whole window."""


class Engine:
    def __init__(self, model: str, threads: int, options: dict[str, str]) -> None:
        self.path, self.threads, self.options = model, threads, options

    def prepare(self) -> None:
        import numpy
        import onnxruntime_genai

        self.np, self.api = numpy, onnxruntime_genai

    def version(self) -> str:
        return f"onnxruntime-genai {self.api.__version__}"

    def load(self) -> None:
        threads = {"intra_op_num_threads": self.threads, "inter_op_num_threads": 1}
        config = self.api.Config(self.path)
        config.overlay(json.dumps({"model": {"decoder": {"session_options": threads}}}))
        self.model: Any = self.api.Model(config)
        described = json.loads((Path(self.path) / "genai_config.json").read_text())
        self.vocab = described["model"]["vocab_size"]

    def run(self, prompts: list[list[int]], new: int) -> tuple[float, float, list[list[int]], int]:
        length, batch = len(prompts[0]), len(prompts)
        begin = time.perf_counter()
        params = self.api.GeneratorParams(self.model)
        longest = max(length + new + 1, LEAST_CACHE_TOKENS)
        params.set_search_options(
            max_length=longest, min_length=longest, batch_size=batch, do_sample=False
        )
        generator = self.api.Generator(self.model, params)
        ids = prompts if batch > 1 else prompts[0]
        generator.append_tokens(self.np.array(ids, dtype=self.np.int32))
        generator.generate_next_token()
        middle = time.perf_counter()
        for _ in range(new):
            generator.generate_next_token()
        end = time.perf_counter()
        tokens = [[int(t) for t in generator.get_sequence(i)[length:]] for i in range(batch)]
        return middle - begin, end - middle, tokens, new * batch
