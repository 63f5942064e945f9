"""Negative log-likelihoods by the float32 reference: `python -m bench.perplexity_reference < JSON`.

A process of its own, because it imports torch. The model is loaded by the code that `inferc verify`
uses (`inferc/reference_models.py`), windows are run one at a time, whole and without a cache.
Standard input: `{"source": path, "windows": [[ids]]}`; the last line of the output is a list of
sums, one a window.
"""

from __future__ import annotations

import json
import sys

from bench.perplexity import negative_log_likelihood
from inferc.reference import ReferenceRequest
from inferc.reference_child import logits
from inferc.reference_models import load


def main() -> None:
    data = json.loads(sys.stdin.read())
    windows = tuple(tuple(window) for window in data["windows"])
    model = load(ReferenceRequest(data["source"], windows)).model
    sums = []
    for number, window in enumerate(windows, 1):
        sums.append(negative_log_likelihood(logits(model, window), window))
        print(f"reference: window {number} of {len(windows)}", file=sys.stderr, flush=True)
    print(json.dumps(sums))


if __name__ == "__main__":
    main()
