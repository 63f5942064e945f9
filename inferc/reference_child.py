"""The process behind `reference`: `python -m inferc.reference_child FOLDER < request.json`.

Writes `logits-<i>.npy` for each prompt and `reference.json`; on failure `error.json` with one
paragraph, and exits with 1.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import PreTrainedModel

from inferc.reference import RESULT_FILE, ReferenceRequest
from inferc.reference_error import ErrorFile
from inferc.reference_models import load


def main() -> None:
    """Answer one request."""
    folder = Path(sys.argv[1])
    sys.excepthook = ErrorFile(folder, "transformers")
    request = ReferenceRequest.from_json(sys.stdin.read())
    loaded = load(request)
    for i, prompt in enumerate(request.prompts):
        np.save(folder / f"logits-{i}.npy", logits(loaded.model, prompt))
    greedy, margins = decode(loaded.model, request)
    result = {
        "greedy": greedy,
        "margins": margins,
        "loader": loaded.loader,
        "notes": loaded.notes,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    (folder / RESULT_FILE).write_text(json.dumps(result), encoding="utf-8")


@torch.no_grad()
def logits(model: PreTrainedModel, prompt: Sequence[int]) -> np.ndarray:
    """Logits of every position, the whole sequence at once and without a cache."""
    out = model(input_ids=torch.tensor([prompt]), use_cache=False).logits[0]
    return (out.float() if out.dtype is torch.bfloat16 else out).numpy()


@torch.no_grad()
def decode(model: PreTrainedModel, request: ReferenceRequest) -> tuple[list[int], list[float]]:
    """The most likely continuation of the first prompt, and each token's lead in logits."""
    tokens: list[int] = []
    margins: list[float] = []
    forbidden = torch.tensor(request.forbidden_ids, dtype=torch.long)
    ids, cache = torch.tensor([request.prompts[0]]), None
    for _ in range(request.greedy_tokens):
        out = model(input_ids=ids, past_key_values=cache, use_cache=True)
        last, cache = out.logits[0, -1].clone(), out.past_key_values
        last[forbidden] = -torch.inf
        best, second = last.topk(2)[0].tolist()
        token = int(last.argmax())
        tokens.append(token)
        margins.append(best - second)
        ids = torch.tensor([[token]])
    return tokens, margins


if __name__ == "__main__":
    main()
