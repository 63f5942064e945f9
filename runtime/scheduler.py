"""Which tokens run in the next step: continuous batching over paged KV. Integers only.

`plan` decides, `commit` records. Between the two nothing becomes visible to others: pages are
shareable only from `commit` on, when their contents have been computed.

Order is by urgency (priority, then arrival) everywhere: the urgent get pages and rows first, and
the least urgent are preempted (their pages dropped, their tokens kept and computed again later).
"""

from bisect import insort
from collections.abc import Mapping

from inferc.errors import RequestError
from inferc.runtime.block_manager import BlockId, BlockManager
from inferc.runtime.plan import Plan, PlannedSequence, Rows
from inferc.runtime.prefix_cache import PrefixCache
from inferc.runtime.request import FinishReason, Sampled, Sequence, SequenceId
from inferc.runtime.scheduler_config import SchedulerConfig, SchedulerStats, StepOutput
from inferc.runtime.state_slots import StateSlots


class Scheduler:
    """Owns all sequences and, through the block manager, all pages."""

    def __init__(self, config: SchedulerConfig, blocks: BlockManager) -> None:
        self.config = config
        self.blocks = blocks
        self.prefix_cache = PrefixCache(blocks, config.prefix_cache)
        self.state_slots = StateSlots(config.running_limit)
        self.stats = SchedulerStats(prefix_cache_off=config.prefix_cache_off)
        self._sequences: dict[SequenceId, Sequence] = {}
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._arrivals = 0

    # -- requests ---------------------------------------------------------------------------

    @property
    def capacity_tokens(self) -> int:
        """Longest sequence that can be served: the context, or all pages if those are fewer."""
        return min(self.config.context_tokens, self.blocks.total * self.blocks.page_tokens)

    @property
    def has_work(self) -> bool:
        """Whether any sequence is unfinished."""
        return bool(self._sequences)

    @property
    def waiting(self) -> tuple[SequenceId, ...]:
        """Sequences without pages, most urgent first."""
        return tuple(sequence.id for sequence in self._waiting)

    @property
    def running(self) -> tuple[SequenceId, ...]:
        """Sequences with pages, most urgent first."""
        return tuple(sequence.id for sequence in self._running)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence; `max_length_tokens` must not exceed `capacity_tokens`."""
        if not sequence.prompt_tokens < sequence.max_length_tokens <= self.capacity_tokens:
            raise RequestError(
                f"A sequence of {sequence.prompt_tokens} prompt tokens and at most"
                f" {sequence.max_length_tokens} in all does not fit: the engine holds sequences of"
                f" up to {self.capacity_tokens} tokens, of which one at least is generated."
            )
        sequence.arrival = self._arrivals
        self._arrivals += 1
        self._sequences[sequence.id] = sequence
        self.stats.prompt_tokens += sequence.prompt_tokens
        insort(self._waiting, sequence, key=_urgency)

    def get(self, sequence_id: SequenceId) -> Sequence | None:
        """The unfinished sequence of this id."""
        return self._sequences.get(sequence_id)

    def finish(self, sequence_id: SequenceId) -> bool:
        """Drop a sequence at any time (cancelled, or stopped by its text); False if unknown."""
        sequence = self._sequences.pop(sequence_id, None)
        if sequence is None:
            return False
        if sequence in self._running:
            self._stop(sequence)
        else:
            self._waiting.remove(sequence)
        return True

    # -- a step -----------------------------------------------------------------------------

    def plan(self) -> Plan:
        """Choose the rows of the next step and give them pages."""
        displaced = self._make_room_for_urgent()
        starved: list[SequenceId] = []
        prompt_rows = self._prompt_rows()
        entries = self._continue_running(prompt_rows, starved)
        if not starved:
            prompt_rows -= sum(e.length for e in entries if e.length > 1)
            rows = self.config.step_tokens - sum(e.length for e in entries)
            entries += self._admit(min(rows, max(0, prompt_rows)))
        self.stats.steps += 1
        preempted = (*displaced, *starved)
        self.stats.preemptions += len(preempted)
        return Plan(self.stats.steps, tuple(entries), preempted)

    def commit(self, plan: Plan, sampled: Mapping[SequenceId, Sampled]) -> list[StepOutput]:
        """Record that `plan` was run; sequences dropped since it was made are passed over."""
        outputs = []
        for entry in plan.sequences:
            sequence = self._sequences.get(entry.sequence)
            if sequence is None:
                continue
            sequence.computed_tokens = entry.start + entry.length
            self.stats.tokens += entry.length
            self.prefix_cache.publish(sequence)
            if entry.rows is Rows.LAST:
                outputs.append(self._append(sequence, sampled[sequence.id]))
        return outputs

    def check(self) -> None:
        """Raise on any broken invariant of the block manager or of the state slots."""
        self.blocks.check(sequence.blocks for sequence in self._sequences.values())
        slots = (sequence.state_slot for sequence in self._sequences.values())
        self.state_slots.check(slot for slot in slots if slot is not None)

    # -- running sequences ------------------------------------------------------------------

    def _prompt_rows(self) -> int:
        """Rows that prompts may take in this step: fewer when running answers wait for it."""
        limit = self.config.mixed_prompt_tokens
        if limit is None:
            return self.config.step_tokens
        for sequence in self._running:
            if sequence.remaining_tokens == 1:
                return limit
        return self.config.step_tokens

    def _continue_running(
        self, prompt_rows: int, preempted: list[SequenceId]
    ) -> list[PlannedSequence]:
        """Rows for sequences that have pages. Victims come from the end, which is planned last."""
        entries: list[PlannedSequence] = []
        rows_left = self.config.step_tokens
        position = 0
        while position < len(self._running):
            sequence = self._running[position]
            is_prompt = sequence.remaining_tokens > 1
            rows = rows_left
            if is_prompt:
                rows = min(rows_left - self._decodes_after(position), prompt_rows)
            length = self._chunk(sequence, rows)
            length = self._reserve(sequence, length, preempted)
            if length > 0:
                entries.append(_planned(sequence, length))
                rows_left -= length
                prompt_rows -= length if is_prompt else 0
            position += 1
        return entries

    def _chunk(self, sequence: Sequence, rows: int) -> int:
        limit = self.config.chunk_tokens or self.config.step_tokens
        return max(0, min(sequence.remaining_tokens, limit, rows))

    def _decodes_after(self, position: int) -> int:
        """Rows that a long prompt leaves for later sequences that decode: it delays none."""
        return sum(later.remaining_tokens == 1 for later in self._running[position + 1 :])

    def _reserve(self, sequence: Sequence, length: int, preempted: list[SequenceId]) -> int:
        """Get pages for `length` more tokens; returns how many tokens now have one.

        With too few free pages it takes what there is, and with none it preempts the least
        urgent, which may be `sequence` itself.
        """
        page_tokens = self.blocks.page_tokens
        while length > 0:
            room = (len(sequence.blocks) + self.blocks.free) * page_tokens
            length_with_room = min(length, room - sequence.computed_tokens)
            if length_with_room > 0:
                self._extend(sequence, sequence.computed_tokens + length_with_room)
                return length_with_room
            victim = self._running[-1]
            self._preempt(victim)
            preempted.append(victim.id)
            if victim is sequence:
                break
        return 0

    def _extend(self, sequence: Sequence, tokens: int) -> None:
        missing = self.blocks.blocks_for(tokens) - len(sequence.blocks)
        if missing > 0:
            fresh = self.blocks.allocate(missing)
            assert fresh is not None, "the caller has made sure of the room"
            sequence.blocks += tuple(fresh)

    def _preempt(self, victim: Sequence) -> None:
        self._stop(victim)
        victim.blocks = ()
        victim.computed_tokens = 0
        victim.published_blocks = 0
        victim.preemptions += 1
        insort(self._waiting, victim, key=_urgency)

    def _stop(self, sequence: Sequence) -> None:
        """Take pages and state slot from a running sequence."""
        self._running.remove(sequence)
        self.blocks.release(sequence.blocks)
        assert sequence.state_slot is not None, "running sequences have a slot"
        self.state_slots.give_back(sequence.state_slot)
        sequence.state_slot = None

    # -- admission --------------------------------------------------------------------------

    def _admit(self, rows: int) -> list[PlannedSequence]:
        """Start waiting sequences while rows, places and pages for all they know remain."""
        entries: list[PlannedSequence] = []
        for sequence in list(self._waiting):
            if rows == 0 or len(self._running) >= self.config.running_limit:
                break
            if self._leader_is_busy(sequence):
                continue
            shared = self.prefix_cache.match(sequence)
            if self._missing_blocks(sequence, self._running, len(shared)) > (
                self.blocks.free - self.blocks.free_among(shared)
            ):
                break
            self._start(sequence, shared)
            length = self._chunk(sequence, rows)
            self._extend(sequence, sequence.computed_tokens + length)
            entries.append(_planned(sequence, length))
            rows -= length
        return entries

    def _start(self, sequence: Sequence, shared: list[BlockId]) -> None:
        """Move from waiting to running; what the cache holds counts as computed."""
        self.blocks.share(shared)
        sequence.blocks = tuple(shared)
        sequence.published_blocks = len(shared)
        sequence.computed_tokens = len(shared) * self.blocks.page_tokens
        if sequence.preemptions == 0:
            sequence.cached_tokens = sequence.computed_tokens
        self.stats.cached_tokens += sequence.computed_tokens
        sequence.state_slot = self.state_slots.take()
        self._waiting.remove(sequence)
        insort(self._running, sequence, key=_urgency)

    def _missing_blocks(
        self, sequence: Sequence, running: list[Sequence], shared_blocks: int
    ) -> int:
        """Pages needed until all known tokens, of `sequence` and those running, are computed."""
        outstanding = sum(
            max(0, self.blocks.blocks_for(len(other.token_ids)) - len(other.blocks))
            for other in running
        )
        return outstanding + self.blocks.blocks_for(len(sequence.token_ids)) - shared_blocks

    def _leader_is_busy(self, sequence: Sequence) -> bool:
        """Whether the sequence's pages are just being computed for another (see `leader`)."""
        if sequence.leader is None or not self.config.prefix_cache:
            return False
        leader = self._sequences.get(sequence.leader)
        if leader is None or leader.urgency > sequence.urgency:
            return False
        return leader.computed_tokens < leader.prompt_tokens

    def _make_room_for_urgent(self) -> list[SequenceId]:
        """Preempt the fewest of lower priority that let the most urgent waiting one start."""
        if not self._waiting or not self._running:
            return []
        urgent = self._waiting[0]
        if self._leader_is_busy(urgent):
            return []
        kept = list(self._running)
        shared = self.prefix_cache.match(urgent)
        room = self.blocks.free - self.blocks.free_among(shared)
        while (
            len(kept) >= self.config.running_limit
            or self._missing_blocks(urgent, kept, len(shared)) > room
        ):
            if not kept or kept[-1].priority >= urgent.priority:
                return []
            room += self.blocks.sole_users(set(kept.pop().blocks).difference(shared))
        victims = self._running[len(kept) :]
        for victim in reversed(victims):
            self._preempt(victim)
        return [victim.id for victim in victims]

    def _append(self, sequence: Sequence, sampled: Sampled) -> StepOutput:
        sequence.token_ids.append(sampled.token)
        reason: FinishReason | None = None
        if sampled.token in sequence.stop_ids:
            reason = "stop"
        elif len(sequence.token_ids) >= sequence.max_length_tokens:
            reason = "length"
        if reason is not None:
            self.finish(sequence.id)
        return StepOutput(sequence.id, sampled, reason)


class CheckingScheduler(Scheduler):
    """Checks the invariants after each step; chosen by `INFERC_CHECK=1`."""

    def commit(self, plan: Plan, sampled: Mapping[SequenceId, Sampled]) -> list[StepOutput]:
        """Commit, then raise if any block is miscounted."""
        outputs = super().commit(plan, sampled)
        self.check()
        return outputs


def _urgency(sequence: Sequence) -> tuple[int, int]:
    return sequence.urgency


def _planned(sequence: Sequence, length: int) -> PlannedSequence:
    start = sequence.computed_tokens
    last = start + length == len(sequence.token_ids)
    token_ids = tuple(sequence.token_ids[start : start + length])
    rows = Rows.LAST if last else Rows.NONE
    assert sequence.state_slot is not None, "running sequences have a slot"
    return PlannedSequence(
        sequence.id, start, token_ids, sequence.blocks, rows, sequence.state_slot
    )
