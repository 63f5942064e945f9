"""Runs a plan and samples from its logits: what stands between `plan` and `commit`."""

from collections.abc import Callable, Mapping

from inferc.runtime.executors.base import Executor, Logits, SamplingExecutor
from inferc.runtime.plan import Plan
from inferc.runtime.request import Sampled, SequenceId
from inferc.runtime.sampler import Sampler

Observer = Callable[[Plan, Logits], None]


class Runner:
    """Executor and sampler; `observer` sees each plan with its logits (log, replay, tests)."""

    def __init__(self, executor: Executor, sampler: Sampler) -> None:
        self.executor = executor
        self.sampler = sampler
        self.observer: Observer | None = None

    def run(self, plan: Plan) -> Mapping[SequenceId, Sampled]:
        """One token for each sequence whose last known token the plan runs."""
        if not plan.sequences:
            return {}
        executor = self.executor
        # An observer wants the logits, so they come here.
        if self.observer is None and isinstance(executor, SamplingExecutor) and executor.samples:
            return self._sample_there(executor, plan)
        logits = executor.run(plan)
        if self.observer is not None:
            self.observer(plan, logits)
        return self.sampler.sample(plan.sampled, logits)

    def _sample_there(self, executor: SamplingExecutor, plan: Plan) -> Mapping[SequenceId, Sampled]:
        """The same tokens, chosen where the logits are."""
        found = executor.sample(plan, self.sampler.rows(plan.sampled))
        for sequence, sampled in zip(plan.sampled, found, strict=True):
            self.sampler.accept(sequence, sampled)
        return dict(zip(plan.sampled, found, strict=True))
