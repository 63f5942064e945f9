"""OpenVINO GenAI: its continuous-batching pipeline stepped by hand, as shipped for the CPU."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any


class Engine:
    """`model` is a folder with the converted model."""

    def __init__(self, model: str, threads: int, options: dict[str, str]) -> None:
        self.model, self.threads, self.options = model, threads, options
        self.requests = 0

    def prepare(self) -> None:
        import numpy
        import openvino
        import openvino_genai

        self.np, self.ov, self.api = numpy, openvino, openvino_genai

    def version(self) -> str:
        return f"openvino-genai {self.api.__version__}"

    def load(self) -> None:
        scheduler = self.api.SchedulerConfig()
        scheduler.cache_size = 1  # GB
        scheduler.max_num_batched_tokens = 4096
        scheduler.max_num_seqs = 32
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = False
        settings = {"INFERENCE_NUM_THREADS": self.threads, **self.options}
        make = self.api.ContinuousBatchingPipeline
        self.pipeline: Any = make(self.model, scheduler, "CPU", settings)
        self.vocab = json.loads((Path(self.model) / "config.json").read_text())["vocab_size"]

    def _take(self, handles: list[Any], tokens: list[list[int]]) -> None:
        for handle, of_sequence in zip(handles, tokens, strict=True):
            while handle.can_read():
                for output in handle.read().values():
                    of_sequence.extend(output.generated_ids)

    def run(self, prompts: list[list[int]], new: int) -> tuple[float, float, list[list[int]], int]:
        settings = self.api.GenerationConfig()
        settings.max_new_tokens, settings.do_sample, settings.ignore_eos = new + 1, False, True
        begin = middle = time.perf_counter()
        handles = []
        for ids in prompts:
            self.requests += 1
            tensor = self.ov.Tensor(self.np.array([ids], dtype=self.np.int64))
            handles.append(self.pipeline.add_request(self.requests, tensor, settings))
        tokens: list[list[int]] = [[] for _ in prompts]
        early = 0
        while self.pipeline.has_non_finished_requests():
            all_started = all(tokens)
            self.pipeline.step()
            self._take(handles, tokens)
            if not all_started:
                middle, early = time.perf_counter(), sum(map(len, tokens))
        end = time.perf_counter()
        return middle - begin, end - middle, tokens, sum(map(len, tokens)) - early
