"""No engine at all, for tests of the harness: its tokens follow from the prompt, its times do not.

Options: `fail` = "load", "run" or "exit": what goes wrong, and where.
"""

from __future__ import annotations

import os


class Engine:
    vocab = 1000

    def __init__(self, model: str, threads: int, options: dict[str, str]) -> None:
        self.model, self.threads, self.fail = model, threads, options.get("fail")

    def prepare(self) -> None:
        print("libraries print to stdout as well")

    def version(self) -> str:
        return "fake 1"

    def load(self) -> None:
        if self.fail == "load":
            raise RuntimeError("there is no such model")

    def run(self, prompts: list[list[int]], new: int) -> tuple[float, float, list[list[int]], int]:
        if len(prompts) > 1 and self.fail == "run":
            raise RuntimeError("no room for several sequences")
        if len(prompts) > 1 and self.fail == "exit":
            os._exit(3)
        tokens = [[(sum(ids) + i) % self.vocab for i in range(new + 1)] for ids in prompts]
        return 0.5, 0.25, tokens, new * len(prompts)
