"""Architectures that need a pattern or a hook of their own: captured, through all passes, compared.

The twelve of `tests.tiny` and the mixtures and recurrent models have tests of their own; the table
in `docs/support.md` measures all types.
"""

from __future__ import annotations

from collections import Counter

import pytest

from inferc.passes.check import Checker
from inferc.passes.instruments import CheckFacts, Verify
from inferc.passes.manager import run_passes
from inferc.passes.pipeline import pipeline
from tests import tiny
from tests.frontend.captured import captured, relative_error, run_forward

PASSES_TOLERANCE = (
    3e-7  # float64, but constants are rounded to float32 as ops and not as attributes
)

# model type -> ops of its decode step, counted inside groups too: what the pattern is there for
OPS: dict[str, dict[str, int]] = {
    # tables of sines and cosines are recomputed, and rotary embedding is found behind them
    "gptj": {"nn.rope": 4, "nn.rope_table": 1},
    "codegen": {"nn.rope": 4, "nn.rope_table": 1},
    "xglm": {"core.sin": 1, "core.embedding": 1},
    "ctrl": {"core.sin": 1, "core.embedding": 1},
    # three kinds of positions that are one for text
    "qwen3_5_text": {"nn.rope": 2, "nn.rope_table": 1, "serve.gated_delta_rule": 3},
    "cohere_compass_text": {"nn.rope_table": 1, "core.sin": 0},
    # mixtures with loops of their own: whole experts
    "dbrx": {"nn.experts": 2},
    "longcat_flash": {"nn.experts": 2, "core.topk": 2},
    "llama4_text": {"nn.experts": 8, "serve.paged_attention": 4},
    "jetmoe": {"nn.experts": 2, "core.topk": 4},
    # recurrences with loops of their own
    "minimax": {"serve.ssd_scan": 1, "nn.experts": 2},
    "recurrent_gemma": {"serve.linear_scan": 2, "serve.causal_conv1d": 2},
    # a matrix for each head, or each token
    "zamba": {"serve.selective_scan": 32, "serve.paged_attention": 2},
    "gemma3n_text": {"serve.paged_attention": 6, "core.matmul": 0},
    # an index that selects all keys; a count of the tokens that are no padding
    "deepseek_v32": {"core.topk": 3},
    "roberta": {"serve.linear_scan": 1, "serve.paged_attention": 2},
    # a weight repeated for every token
    "roc_bert": {"serve.paged_attention": 2},
    # a mask that multiplies; a guard that holds for all lengths
    "openai-gpt": {"serve.paged_attention": 2},
    "aria_text": {"nn.experts": 2},
}


@pytest.mark.parametrize("name", OPS)
def test_the_same_logits_from_capture_to_the_step(name: str) -> None:
    module, values = captured(name)[0], tiny.parameters(name)
    for batch, length in ((1, 1), (2, 21)):
        ids = tiny.ids(name, batch, length)
        found = run_forward(module.funcs["forward"], lambda n, _: values[n], ids)
        assert relative_error(found, tiny.logits(name, ids)) < 1e-5
    run_passes(module, pipeline(), instruments=[Verify(), CheckFacts()])
    compared = Checker(captured(name)[0], precision="f64").compare(module)
    assert max(c.relative_error for c in compared) < PASSES_TOLERANCE
    found_ops = Counter(
        inner.name
        for op in module.funcs["decode"].ops
        for inner in (op.body.ops if op.body is not None else [op])
    )
    assert {op: found_ops[op] for op in OPS[name]} == OPS[name]
