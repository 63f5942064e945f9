"""Runs a plan and samples from its logits: what stands between `plan` and `commit`."""

from collections.abc import Callable, Mapping

from inferc.runtime.executors.base import Executor, Logits
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
        logits = self.executor.run(plan)
        if self.observer is not None:
            self.observer(plan, logits)
        return self.sampler.sample(plan.sampled, logits)
