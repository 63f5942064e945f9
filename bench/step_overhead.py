"""Microseconds of Python in a step: scheduling, inputs, tokens, text; the executor is idle.

    python -m bench.step_overhead [--steps 300] [--vocab 49152] [--cold-mb 100]

With `--cold-mb` so much memory is read between a step's inputs and its tokens, as weights are; its
time does not count. Python then finds nothing in the caches, and takes several times as long: in
use it is the cold figure that counts.

The least and the quartile of a decode step at 1, 8 and 32 sequences, for greedy requests (the
executor gives ids, as a step library does), and for sampled ones (it gives logits).
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from inferc.runtime.artifact import Limits, TokenFacts
from inferc.runtime.engine import Engine
from inferc.runtime.executors.base import Logits
from inferc.runtime.plan import Plan
from inferc.runtime.scheduler_config import SchedulerConfig
from inferc.runtime.step_inputs import StepInputs, check_limits
from inferc.runtime.tokenizer import TextTokenizer

LIMITS = Limits(step_tokens=512, sequences=64, context_tokens=2048)
PAGE_TOKENS = 32
SAMPLED = {"temperature": 0.7, "top_k": 40, "top_p": 0.95}


class Idle:
    """Fills the inputs of a step and answers at once."""

    finds_greedy = True

    def __init__(self, vocab_size: int, cold_bytes: int) -> None:
        self.vocab_size, self.page_tokens = vocab_size, PAGE_TOKENS
        self.total_blocks = LIMITS.sequences * LIMITS.context_tokens // PAGE_TOKENS
        self._inputs = StepInputs(LIMITS, PAGE_TOKENS)
        self._weights = np.ones(cold_bytes // 4, np.float32)
        self.reading_s = 0.0
        rng = np.random.default_rng(0)
        self._logits = rng.standard_normal((LIMITS.sequences, vocab_size)).astype(np.float32)

    def run(self, plan: Plan) -> Logits:
        check_limits(plan, LIMITS)
        shape = self._inputs.fill(plan)
        begin = time.perf_counter()
        self._weights.max(initial=0)
        self.reading_s = time.perf_counter() - begin
        return self._logits[: shape.logit_rows]

    def greedy(self, plan: Plan, end: int) -> list[int]:
        return [end - 1] * len(self.run(plan))

    def close(self) -> None:
        pass


def tokenizer(vocab_size: int) -> TextTokenizer:
    """A word for each id, spelled as byte-level vocabularies are."""
    from tokenizers import Tokenizer, decoders
    from tokenizers.models import BPE

    made = Tokenizer(BPE({f"Ġ{number}": number for number in range(vocab_size)}, []))
    made.decoder = decoders.ByteLevel()
    return TextTokenizer(made, TokenFacts(eos=(), bos=None, pad=None, add_bos=False))


def step_us(
    sequences: int, steps: int, vocab_size: int, cold_bytes: int, **options: object
) -> tuple[float, float]:
    """Least and lower quartile of a step."""
    config = SchedulerConfig(LIMITS.step_tokens, LIMITS.sequences, LIMITS.context_tokens)
    executor = Idle(vocab_size, cold_bytes)
    engine = Engine(executor, tokenizer(vocab_size), config)
    for number in range(sequences):
        engine.add_request([number + 1] * 8, max_tokens=steps + 20, ignore_eos=True, **options)
    for _ in range(4):
        engine.step()
    taken = []
    for _ in range(steps):
        begin = time.perf_counter()
        engine.step()
        taken.append(1e6 * (time.perf_counter() - begin - executor.reading_s))
    taken.sort()
    return taken[0], taken[len(taken) // 4]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--vocab", type=int, default=49152)
    parser.add_argument("--cold-mb", type=int, default=0)
    args = parser.parse_args()
    for name, options in (("greedy", {}), ("sampled", SAMPLED)):
        for sequences in (1, 8, 32):
            least, quartile = step_us(
                sequences, args.steps, args.vocab, args.cold_mb * 1_000_000, **options
            )
            print(
                f"{name:8} {sequences:3} sequences: least {least:7.0f} us,"
                f" quartile {quartile:7.0f} us, {least / sequences:6.1f} us a sequence"
            )


if __name__ == "__main__":
    main()
