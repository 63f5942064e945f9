"""Runs a plan and samples from its logits: what stands between `plan` and `commit`."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from inferc.runtime.executors.base import Executor, GreedyExecutor, Logits, SamplingExecutor
from inferc.runtime.plan import Plan
from inferc.runtime.request import Sampled, SequenceId
from inferc.runtime.sampler import Sampler, logits_are_nan

Observer = Callable[[Plan, Logits], None]


class Runner:
    """Executor and sampler; `observer` sees each plan with its logits (log, replay, tests)."""

    def __init__(self, executor: Executor, sampler: Sampler) -> None:
        self.executor = executor
        self.sampler = sampler
        self.observer: Observer | None = None
        # Looked up once: to compare with a protocol takes longer than to plan a step.
        self._sampling = executor if isinstance(executor, SamplingExecutor) else None
        self._greedy = executor if isinstance(executor, GreedyExecutor) else None

    def run(self, plan: Plan) -> Mapping[SequenceId, Sampled]:
        """One token for each sequence whose last known token the plan runs."""
        if not plan.sequences:
            return {}
        sampled = plan.sampled
        if self.observer is None:  # an observer wants the logits, so then they come here
            if self._sampling is not None and self._sampling.samples:
                return self._sample_there(self._sampling, plan, sampled)
            if self._greedy is not None and self._greedy.finds_greedy:
                end = self.sampler.greedy_end(sampled)
                if end is not None:
                    return self._most_likely(self._greedy.greedy(plan, end), sampled)
        logits = self.executor.run(plan)
        if self.observer is not None:
            self.observer(plan, logits)
        return self.sampler.sample(sampled, logits)

    def _sample_there(
        self, executor: SamplingExecutor, plan: Plan, sampled: tuple[SequenceId, ...]
    ) -> Mapping[SequenceId, Sampled]:
        """The same tokens, chosen where the logits are."""
        return self._accept(executor.sample(plan, self.sampler.rows(sampled)), sampled)

    def _most_likely(
        self, token_ids: Sequence[int], sampled: tuple[SequenceId, ...]
    ) -> Mapping[SequenceId, Sampled]:
        if min(token_ids, default=0) < 0:
            raise logits_are_nan()
        return self._accept(map(Sampled, token_ids), sampled)

    def _accept(
        self, found: Iterable[Sampled], sampled: tuple[SequenceId, ...]
    ) -> Mapping[SequenceId, Sampled]:
        tokens = dict(zip(sampled, found, strict=True))
        for sequence, token in tokens.items():
            self.sampler.accept(sequence, token)
        return tokens
