"""What is measured: models by shape, steps by size."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONFIGS = Path(__file__).parents[2] / "tests" / "data" / "configs"
STEP_TOKENS = 2048
PAGE_TOKENS = 32


@dataclass(frozen=True)
class Model:
    """A published config with random weights.

    Attributes:
        shape: how `sparse_checkpoint` names its tensors.
        family: a stored config of the same family, and `sizes` what differs from it.
        bits: of the matrices' weights: 16, or 4 in groups of 128; peers run 16 only.
    """

    name: str
    shape: str
    family: str
    sizes: tuple[tuple[str, int], ...]
    bits: int = 16

    def config(self, layers: int | None = None) -> dict[str, Any]:
        """The config; with fewer layers for a try."""
        stored = json.loads((CONFIGS / f"{self.family}.json").read_text())
        config = stored | dict(self.sizes) | {"dtype": "bfloat16"}
        return config if layers is None else config | {"num_hidden_layers": layers}


_LLAMA_8B = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32,
}  # fmt: skip
_QWEN3_30B = {
    "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_hidden_layers": 48, "max_window_layers": 48, "num_attention_heads": 32,
}  # fmt: skip
MODELS = {
    m.name: m
    for m in (
        Model("llama-3.1-8b", "llama", "llama-3.1-70b", tuple(_LLAMA_8B.items())),
        Model("llama-3.1-8b-int4", "llama", "llama-3.1-70b", tuple(_LLAMA_8B.items()), bits=4),
        Model("qwen3-30b-a3b", "experts", "qwen3-235b-a22b", tuple(_QWEN3_30B.items())),
    )
}


@dataclass(frozen=True)
class Workload:
    """`decode`: a step of `batch` sequences with `context_tokens` each; `prefill`: one prompt.

    `mixed`: `batch` requests at once, prompts and answers of various lengths, from first to last.
    """

    kind: str
    batch: int
    context_tokens: int

    def __str__(self) -> str:
        if self.kind == "mixed":
            return f"mixed, {self.batch} requests"
        what = f"{self.context_tokens // 1024}k"
        return f"prefill {what}" if self.kind == "prefill" else f"decode {self.batch} x {what}"


WORKLOADS = (
    *(Workload("decode", b, c) for c in (1024, 16384) for b in (1, 8, 64, 256)),
    *(Workload("prefill", 1, c) for c in (2048, 16384)),
    Workload("mixed", 64, 2048),
)
QUICK = (
    Workload("decode", 1, 1024), Workload("decode", 64, 1024), Workload("prefill", 1, 2048),
)  # fmt: skip


def mixed_requests(workload: Workload) -> list[tuple[int, int]]:
    """Tokens of prompt and answer of each request: the same for every engine."""
    longest = workload.context_tokens
    prompts = [longest // 16 + 37 * i % (longest * 3 // 4) for i in range(workload.batch)]
    return [(prompt, 32 + 29 * i % 160) for i, prompt in enumerate(prompts)]
