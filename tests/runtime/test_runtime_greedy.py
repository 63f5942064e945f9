"""Tokens found beside the logits: the same ones, and asked for only where they are wanted."""

import numpy as np
import pytest
from runtime_tokenizers import byte_level
from runtime_toy import ToyExecutor

from inferc.errors import InfercError
from inferc.runtime.engine import Engine
from inferc.runtime.plan import Plan
from inferc.runtime.scheduler_config import SchedulerConfig
from inferc.runtime.tokenizer import TextTokenizer

VOCAB = 300
KNOWN = 259  # tokens of the toy tokenizer; ids behind are padding


class GreedyToy(ToyExecutor):
    """Counts how often logits and ids are asked for."""

    finds_greedy = True

    def __init__(self, padding: float = 0.0) -> None:
        super().__init__(64, 4, VOCAB)
        self.padding = padding
        self.steps: list[str] = []

    def run(self, plan: Plan) -> np.ndarray:
        self.steps.append("logits")
        logits = super().run(plan)
        logits[:, KNOWN:] += self.padding
        return logits

    def greedy(self, plan: Plan, end: int) -> list[int]:
        logits = self.run(plan)[:, :end]
        self.steps[-1] = "ids"
        ids = np.where(np.isnan(logits).any(-1), -1, logits.argmax(-1))
        return [int(token) for token in ids]


def engine(executor: ToyExecutor, tokenizer: TextTokenizer | None = None) -> Engine:
    return Engine(executor, tokenizer or byte_level(), SchedulerConfig(16, 4, 100), check=True)


def tokens(made: Engine, **options: object) -> list[tuple[int, ...]]:
    prompts = ["Hello", "Hello, world", "y"]
    return [c.token_ids for c in made.generate(prompts, max_tokens=12, ignore_eos=True, **options)]


def test_the_same_tokens_without_logits() -> None:
    executor = GreedyToy(padding=100.0)
    assert tokens(engine(executor)) == tokens(engine(ToyExecutor(64, 4, VOCAB)))
    assert set(executor.steps) == {"ids"}


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.0, "seed": 1},
        {"logprobs": 1},
        {"logit_bias": {65: 5.0}},
        {"repetition_penalty": 1.5},
        {"presence_penalty": 1.0},
        {"frequency_penalty": 1.0},
    ],
)
def test_logits_where_more_is_asked(options: dict[str, object]) -> None:
    executor = GreedyToy()
    assert tokens(engine(executor), **options) == tokens(
        engine(ToyExecutor(64, 4, VOCAB)), **options
    )
    assert set(executor.steps) == {"logits"}


def test_one_sampled_row_wants_the_logits_of_its_steps() -> None:
    executor = GreedyToy()
    made = engine(executor)
    made.add_request("Hello", max_tokens=6, ignore_eos=True)
    made.add_request("Hello", max_tokens=3, ignore_eos=True, temperature=1.0)
    while made.has_work:
        made.step()
    assert executor.steps == ["logits"] * 3 + ["ids"] * 3


def test_an_observer_sees_logits() -> None:
    executor, seen = GreedyToy(), []
    made = engine(executor)
    made.observe(lambda plan, logits: seen.append(logits.shape))
    tokens(made)
    assert len(seen) == len(executor.steps) and set(executor.steps) == {"logits"}


def test_holes_in_the_vocabulary_want_the_logits() -> None:
    class Holed(TextTokenizer):
        def known_ids(self, vocab_size: int) -> np.ndarray:
            known = super().known_ids(vocab_size)
            known[70] = False
            return known

    toy, executor = byte_level(), GreedyToy()
    tokens(engine(executor, Holed(toy._tokenizer, toy.facts)))
    assert set(executor.steps) == {"logits"}


def test_an_old_library_is_not_asked() -> None:
    executor = GreedyToy()
    executor.finds_greedy = False
    tokens(engine(executor))
    assert set(executor.steps) == {"logits"}


def test_nan_is_an_error() -> None:
    class Broken(GreedyToy):
        def run(self, plan: Plan) -> np.ndarray:
            logits = super().run(plan)
            logits[0, 7] = np.nan
            return logits

    with pytest.raises(InfercError, match="not numbers"):
        tokens(engine(Broken()))
