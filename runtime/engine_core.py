"""The engine's core: requests in, a step at a time, events out. What servers drive."""

import os
import threading
from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np

from inferc.errors import InfercError, RequestError
from inferc.runtime.block_manager import BlockManager
from inferc.runtime.checks import is_count, is_integer, require
from inferc.runtime.events import Event
from inferc.runtime.executors.base import Executor, Logits
from inferc.runtime.output_text import OutputText
from inferc.runtime.plan import Plan, PlannedSequence, Rows
from inferc.runtime.prompt import Prompt, as_ids
from inferc.runtime.request import RequestId, SamplingParams, SequenceId
from inferc.runtime.request import Sequence as ServedSequence
from inferc.runtime.runner import Observer, Runner
from inferc.runtime.sampler import Sampler
from inferc.runtime.scheduler import CheckingScheduler, Scheduler
from inferc.runtime.scheduler_config import SchedulerConfig, SchedulerStats, StepOutput
from inferc.runtime.state_slots import spare_slot
from inferc.runtime.tokenizer import TextTokenizer


class EngineCore:
    """Scheduler, runner and the text of each sequence."""

    def __init__(
        self,
        executor: Executor,
        tokenizer: TextTokenizer,
        config: SchedulerConfig,
        *,
        defaults: SamplingParams | None = None,
        check: bool | None = None,
    ) -> None:
        self.executor = executor
        self.tokenizer = tokenizer
        self.defaults = defaults or SamplingParams()
        if check is None:
            check = os.environ.get("INFERC_CHECK") == "1"
        blocks = BlockManager(executor.total_blocks, executor.page_tokens)
        self.scheduler = (CheckingScheduler if check else Scheduler)(config, blocks)
        self._runner = Runner(executor, Sampler(tokenizer.known_ids(executor.vocab_size)))
        self._outputs: dict[SequenceId, OutputText] = {}
        self._unfinished: dict[RequestId, set[SequenceId]] = {}
        self._undelivered: list[Event] = []
        self._busy = threading.Lock()
        self._request_ids = map(RequestId, count())
        self._sequence_ids = map(SequenceId, count())

    @property
    def stats(self) -> SchedulerStats:
        """Counts of steps, tokens, preemptions and cache hits."""
        return self.scheduler.stats

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do or to deliver."""
        return self.scheduler.has_work or bool(self._undelivered)

    def observe(self, observer: Observer | None) -> None:
        """Let `observer(plan, logits)` see every step: for logs, replay and tests."""
        self._runner.observer = observer

    def sampling(self, params: SamplingParams | None = None, **options: Any) -> SamplingParams:
        """`params`, or the artifact's defaults, with `options` applied; refuses bad values."""
        base = self.defaults if params is None else params
        require("params", params, "SamplingParams or None", isinstance(base, SamplingParams))
        resolved = base.with_options(**options)
        self._runner.sampler.check(resolved)
        return resolved

    def add_request(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        **options: Any,
    ) -> RequestId:
        """Queue a request; a larger `priority` is served first. Refused if it cannot fit."""
        require("priority", priority, "an integer", is_integer(priority))
        resolved = self.sampling(params, **options)
        token_ids = self.prompt_ids(prompt)
        request = next(self._request_ids)
        seed = int.from_bytes(os.urandom(8)) if resolved.seed is None else resolved.seed
        leader: SequenceId | None = None
        self._unfinished[request] = set()
        for index in range(resolved.n):
            sequence = self._new_sequence(token_ids, resolved, priority, leader)
            leader = leader if leader is not None else sequence.id
            self._runner.sampler.add(sequence.id, resolved, token_ids, seed, index)
            self._outputs[sequence.id] = OutputText(
                request, index, sequence, resolved, self.tokenizer
            )
            self._unfinished[request].add(sequence.id)
            self.scheduler.add(sequence)  # last: what it plans, the others must know
        return request

    def cancel(self, request: RequestId) -> bool:
        """End a request; its last events say `cancelled`. False if it is not being served."""
        sequences = self._unfinished.get(request)
        if sequences is None:
            return False
        for sequence in sorted(sequences):
            self._undelivered.append(self._outputs[sequence].cancel())
            self._forget(sequence)
        return True

    def step(self) -> list[Event]:
        """Run one step; returns the events of all requests."""
        self._begin()
        try:
            plan = self.scheduler.plan()
            sampled = self._runner.run(plan)
            return self._deliver(self.scheduler.commit(plan, sampled))
        finally:
            self._busy.release()

    def logits(self, token_ids: Sequence[int], chunk_tokens: int | None = None) -> Logits:
        """Logits of every position, `[len(token_ids), vocab]`, computed in chunks over pages.

        For checking a model: nothing is sampled, and neither running requests nor the prefix cache
        take part.
        """
        require(
            "chunk_tokens", chunk_tokens, "None or an integer of at least 1",
            chunk_tokens is None or is_count(chunk_tokens),
        )  # fmt: skip
        token_ids = self.prompt_ids(token_ids, generated_tokens=0)
        self._begin()
        try:
            return self._logits(token_ids, chunk_tokens)
        finally:
            self._busy.release()

    def close(self) -> None:
        """Give back threads and memory; safe to call twice."""
        self.executor.close()

    def prompt_ids(self, prompt: Prompt, generated_tokens: int = 1) -> list[int]:
        """Ids of a prompt; refuses one that does not fit with a token to generate."""
        token_ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else as_ids(prompt)
        if not token_ids:
            raise RequestError("The prompt is empty: expected at least one token.")
        vocab_size = self.executor.vocab_size
        for token in token_ids:
            if not 0 <= token < vocab_size:
                raise RequestError(
                    f"The prompt has token {token}; the model knows 0 to {vocab_size - 1}."
                )
        longest = self.scheduler.capacity_tokens - generated_tokens
        if len(token_ids) > longest:
            context_tokens = self.scheduler.config.context_tokens
            limit = (
                f"the artifact's context of {context_tokens} tokens"
                if self.scheduler.capacity_tokens == context_tokens
                else "the memory for KV; raise kv_budget_bytes"
            )
            raise RequestError(
                f"The prompt has {len(token_ids)} tokens, and at most {longest} fit. The limit is"
                f" {limit}."
            )
        return token_ids

    # -- inside -----------------------------------------------------------------------------

    def _begin(self) -> None:
        """Refuse two threads at once: pages and worker threads belong to one step at a time."""
        if not self._busy.acquire(blocking=False):
            raise InfercError(
                "The engine is running a step for another thread. An Engine serves one caller at a"
                " time; AsyncEngine serves many."
            )

    def _logits(self, token_ids: list[int], chunk_tokens: int | None) -> Logits:
        blocks = self.scheduler.blocks.allocate(self.scheduler.blocks.blocks_for(len(token_ids)))
        if blocks is None:
            raise RequestError(
                f"{len(token_ids)} tokens need more pages than the {self.scheduler.blocks.free}"
                " that are free; finish other requests first, or raise kv_budget_bytes."
            )
        logits = np.empty((len(token_ids), self.executor.vocab_size), np.float32)
        step_tokens = self.scheduler.config.step_tokens
        chunk = min(chunk_tokens or step_tokens, step_tokens)
        sequence, slot = next(self._sequence_ids), spare_slot(self.scheduler.config.sequences)
        try:
            for start in range(0, len(token_ids), chunk):
                part = tuple(token_ids[start : start + chunk])
                entry = PlannedSequence(sequence, start, part, tuple(blocks), Rows.ALL, slot)
                logits[start : start + chunk] = self.executor.run(Plan(0, (entry,)))
        finally:
            self.scheduler.blocks.release(blocks)
        return logits

    def _new_sequence(
        self,
        token_ids: list[int],
        params: SamplingParams,
        priority: int,
        leader: SequenceId | None,
    ) -> ServedSequence:
        stop_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            stop_ids |= frozenset(self.tokenizer.facts.eos)
        length = min(len(token_ids) + params.max_tokens, self.scheduler.capacity_tokens)
        return ServedSequence(
            next(self._sequence_ids),
            len(token_ids),
            list(token_ids),
            length,
            stop_ids,
            priority,
            leader,
        )

    def _deliver(self, outputs: list[StepOutput]) -> list[Event]:
        """Turn accepted tokens into events; a stop string ends a sequence here."""
        events, self._undelivered = self._undelivered, []
        for output in outputs:
            text = self._outputs[output.sequence]
            events.append(text.accept(output))
            if text.finish_reason is not None:
                self._forget(output.sequence)
        return events

    def _forget(self, sequence: SequenceId) -> None:
        self.scheduler.finish(sequence)
        self._runner.sampler.remove(sequence)
        request = self._outputs.pop(sequence).request
        self._unfinished[request].discard(sequence)
        if not self._unfinished[request]:
            del self._unfinished[request]
