"""Ten thousand random workloads, and faults planted to show that the driver finds them."""

from collections.abc import Sequence as Items

import pytest
from runtime_workload import Driver, random_workload, run_seeds

from inferc.runtime.block_manager import BlockId, BlockManager
from inferc.runtime.plan import Plan
from inferc.runtime.request import Sequence
from inferc.runtime.scheduler import Scheduler
from inferc.runtime.scheduler_config import SchedulerConfig

SEEDS = 10_000
FAULT_SEEDS = 1_000


@pytest.mark.parametrize("first", range(0, SEEDS, 1_000))
def test_invariants_hold(first: int) -> None:
    assert run_seeds(first, first + 1_000) == {}


def test_workloads_reach_what_they_are_for() -> None:
    preempted = cached = cancelled = stopped = mixed = 0
    for seed in range(500):
        driver = Driver(random_workload(seed))
        driver.run()
        preempted += driver.scheduler.stats.preemptions > 0
        cached += driver.scheduler.stats.cached_tokens > 0
        cancelled += bool(driver.cancelled)
        stopped += any(arrival.stop_ids for arrival in driver.workload.arrivals)
        mixed += preempted > 0 and cached > 0
    assert min(preempted, cached, cancelled, stopped, mixed) > 25


class EagerScheduler(Scheduler):
    """Planted fault: pages become shareable when they are allocated, before commit."""

    def _extend(self, sequence: Sequence, tokens: int) -> None:
        super()._extend(sequence, tokens)
        computed, sequence.computed_tokens = sequence.computed_tokens, tokens
        self.prefix_cache.publish(sequence)
        sequence.computed_tokens = computed


class PartialPageScheduler(Scheduler):
    """Planted fault: the last, unfilled page is published too."""

    def _extend(self, sequence: Sequence, tokens: int) -> None:
        super()._extend(sequence, tokens)
        self.prefix_cache.publish(sequence)
        page_tokens = self.blocks.page_tokens
        index = sequence.computed_tokens // page_tokens
        if self.config.prefix_cache and len(sequence.token_ids) >= (index + 1) * page_tokens:
            key = self.prefix_cache._key(sequence, index)
            self.blocks.publish(sequence.blocks[index], key)


class ForgetfulScheduler(Scheduler):
    """Planted fault: a preempted sequence believes that its tokens are still in the cache."""

    def _preempt(self, victim: Sequence) -> None:
        computed = victim.computed_tokens
        super()._preempt(victim)
        victim.computed_tokens = computed

    def _start(self, sequence: Sequence, shared: list[BlockId]) -> None:
        believed = sequence.computed_tokens
        super()._start(sequence, shared)
        sequence.computed_tokens = max(believed, sequence.computed_tokens)


class RotatingScheduler(Scheduler):
    """Planted fault: running sequences exchange their state slots between steps."""

    def plan(self) -> Plan:
        slots = [sequence.state_slot for sequence in self._running]
        for sequence, slot in zip(self._running, [*slots[1:], *slots[:1]], strict=True):
            sequence.state_slot = slot
        return super().plan()


class LeakySlotScheduler(Scheduler):
    """Planted fault: a preempted sequence keeps its state slot for itself."""

    def _preempt(self, victim: Sequence) -> None:
        super()._preempt(victim)
        self.state_slots.take()


class LeakyManager(BlockManager):
    """Planted fault: the last page of a table is not given back."""

    def release(self, blocks: Items[BlockId]) -> None:
        super().release(blocks[:-1])


class StaleKeyManager(BlockManager):
    """Planted fault: an evicted page keeps its key while it is filled anew."""

    def _take(self) -> BlockId:
        block, _ = self._free.popitem(last=False)
        self._counts[block] = 1
        return block


class GreedyStart(Scheduler):
    """Planted fault: all known tokens may come from the cache, so that no logits are computed."""

    def _start(self, sequence: Sequence, shared: list[BlockId]) -> None:
        super()._start(sequence, shared)
        if len(sequence.token_ids) % self.blocks.page_tokens == 0 and shared:
            sequence.computed_tokens = len(sequence.token_ids)


def _with_manager(
    manager: type[BlockManager],
) -> type[Scheduler]:
    class Faulty(Scheduler):
        def __init__(self, config: SchedulerConfig, blocks: BlockManager) -> None:
            blocks.__class__ = manager
            super().__init__(config, blocks)

    return Faulty


@pytest.mark.parametrize(
    "faulty",
    [
        EagerScheduler,
        PartialPageScheduler,
        ForgetfulScheduler,
        GreedyStart,
        RotatingScheduler,
        LeakySlotScheduler,
        pytest.param(_with_manager(LeakyManager), id="LeakyManager"),
        pytest.param(_with_manager(StaleKeyManager), id="StaleKeyManager"),
    ],
)
def test_planted_fault_is_caught(faulty: type[Scheduler]) -> None:
    failures = run_seeds(0, FAULT_SEEDS, faulty)
    assert len(failures) > 5, f"{faulty.__name__} was caught {len(failures)} times"


def test_pages_shareable_before_commit_show_as_stale_pages() -> None:
    failures = run_seeds(0, FAULT_SEEDS, EagerScheduler)
    assert any("stale page" in message for message in failures.values())


def test_exchanged_slots_show_as_stale_states() -> None:
    failures = run_seeds(0, FAULT_SEEDS, RotatingScheduler)
    assert any("stale state" in message for message in failures.values())
