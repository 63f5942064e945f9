"""Runs plans on the CPU: one call of the compiled step each, with nothing allocated in between."""

import ctypes
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from inferc.runtime.artifact import KvPlan, Manifest, StateEntry, artifact_path
from inferc.runtime.executors.base import Logits
from inferc.runtime.executors.kv_pools import pool_sizes
from inferc.runtime.executors.memory import Bytes, allocate, map_weights
from inferc.runtime.executors.step_library import StepArgs, StepLibrary
from inferc.runtime.kv_budget import KvBudget
from inferc.runtime.plan import Plan
from inferc.runtime.pool_choice import DEFAULT_POOL, PoolChoice
from inferc.runtime.state_slots import state_slots
from inferc.runtime.step_inputs import Ints, StepInputs, StepShape, check_limits
from inferc.runtime.step_limits import StepLimits, measure_bandwidth, measure_limits
from inferc.runtime.step_profile import Listener, StepProfile
from inferc.runtime.target_choice import select_target

_GREEDY_ABI_VERSION = 4


class CpuExecutor:
    """The step library of one artifact, with weights, KV pages, recurrent states and arena."""

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        budget: KvBudget,
        threads: int,
        choice: PoolChoice = DEFAULT_POOL,
    ) -> None:
        self.budget = budget
        self.threads = threads
        self._limits = manifest.limits
        self._vocab_size = manifest.model.vocab_size
        self._page_tokens = manifest.kv.page_tokens
        target = select_target(manifest, "cpu")
        self._weights = map_weights(
            artifact_path(folder, manifest.weights.file), manifest.weights.tensors
        )
        self._pools = _allocate_pools(manifest.kv, budget.pages)
        self._states = _allocate_states(manifest.states, state_slots(manifest.limits.sequences))
        self._arena = allocate(manifest.memory.arena_bytes, "the arena")
        self._inputs = StepInputs(manifest.limits, self._page_tokens)
        self._logits: Logits = np.empty((0, self._vocab_size), np.float32)
        self._greedy_ids: Ints = np.zeros(manifest.limits.step_tokens, np.int32)
        self._greedy_address = self._greedy_ids.ctypes.data
        self._greedy_view = self._greedy_ids.data
        self._weight_pointers = _addresses(self._weights)
        self._pool_pointers = _addresses(self._pools)
        self._state_pointers = _addresses(self._states)
        self._args = self._bind_args()
        self._listener: Listener | None = None
        self._library = StepLibrary(artifact_path(folder, target.library), threads, choice)

    @property
    def total_blocks(self) -> int:
        """Pages in the KV pools."""
        return self.budget.pages

    @property
    def page_tokens(self) -> int:
        """Tokens of a page."""
        return self._page_tokens

    @property
    def vocab_size(self) -> int:
        """Columns of the logits."""
        return self._vocab_size

    def run(self, plan: Plan) -> Logits:
        """Logits of the wanted rows, in a buffer that the next call overwrites."""
        rows = self._run(plan)
        return self._logits[:rows]

    def _run(self, plan: Plan) -> int:
        """Run a step; returns how many rows of logits it has."""
        check_limits(plan, self._limits)
        shape = self._inputs.fill(plan)
        if shape.logit_rows > len(self._logits):
            self._grow_logits(shape.logit_rows)
        args = self._args
        args.tokens = shape.tokens
        args.sequences = shape.sequences
        args.logit_rows = shape.logit_rows
        self._run_step(shape)
        return shape.logit_rows

    def use_pool(self, threads: int, choice: PoolChoice) -> None:
        """Go on with other workers; between steps. Results stay the same."""
        self._library.use_pool(threads, choice)
        self.threads = threads

    def listen(self, listener: Listener | None) -> None:
        """Measure every kernel call from now on, or no longer.

        Raises InfercError for a library that cannot.
        """
        self._library.calls(decode=True)
        self._listener = listener

    def measure_limits(self) -> StepLimits:
        """What the workers can read and compute at best, measured now."""
        return measure_limits(self._library)

    def read_bandwidth(self) -> float:
        """Bytes a second that the workers can read at best, measured now."""
        return measure_bandwidth(self._library)

    @property
    def finds_greedy(self) -> bool:
        """Whether the library is new enough."""
        return self._library.abi_version >= _GREEDY_ABI_VERSION

    def greedy(self, plan: Plan, end: int) -> list[int]:
        """The most likely ids, found by the workers: Python reads no logits."""
        args = self._args
        args.greedy_ids, args.greedy_end = self._greedy_address, end
        try:
            rows = self._run(plan)
        finally:
            args.greedy_ids = None
        return self._greedy_view[:rows].tolist()

    def close(self) -> None:
        """Stop the worker threads; memory goes with the object."""
        self._library.close()

    def _run_step(self, shape: StepShape) -> None:
        if self._listener is None:
            self._library.run(self._args, shape.decode)
        else:
            self._listener(self._run_measured(shape))

    def _run_measured(self, shape: StepShape) -> StepProfile:
        args, library = self._args, self._library
        spans = np.zeros((self.threads, library.calls(shape.decode), 2), np.int64)
        args.profile_ns = spans.ctypes.data
        begin_ns = time.monotonic_ns()
        try:
            library.run(args, shape.decode)
        finally:
            args.profile_ns = None
        end_ns = time.monotonic_ns()
        context = int(self._inputs.context_lengths[: shape.sequences].mean())
        return StepProfile(
            shape.decode, shape.tokens, shape.sequences, shape.logit_rows, context,
            begin_ns, end_ns, spans,
        )  # fmt: skip

    def _bind_args(self) -> StepArgs:
        """Everything in the step's arguments that never changes."""
        inputs = self._inputs
        return StepArgs(
            table_stride=inputs.table_stride,
            ids=inputs.ids.ctypes.data,
            positions=inputs.positions.ctypes.data,
            slots=inputs.slots.ctypes.data,
            sequence_starts=inputs.sequence_starts.ctypes.data,
            context_lengths=inputs.context_lengths.ctypes.data,
            block_tables=inputs.block_tables.ctypes.data,
            logit_indices=inputs.logit_indices.ctypes.data,
            weights=self._weight_pointers.ctypes.data,
            caches=self._pool_pointers.ctypes.data,
            arena=self._arena.ctypes.data,
            state_slots=inputs.state_slots.ctypes.data,
            states=self._state_pointers.ctypes.data,
        )

    def _grow_logits(self, rows: int) -> None:
        """Serving needs a row a sequence; only `Engine.logits` asks for more."""
        rows = max(rows, min(self._limits.sequences, self._limits.step_tokens))
        nbytes = rows * self._vocab_size * ctypes.sizeof(ctypes.c_float)
        self._logits = allocate(nbytes, "the logits").view(np.float32).reshape(rows, -1)
        self._args.logits = self._logits.ctypes.data


def _allocate_pools(kv: KvPlan, pages: int) -> tuple[Bytes, ...]:
    """K and V pool of each cache, in the order of the step's `caches` argument.

    Of a cache with its values in its keys both are the same.
    """
    pools: list[Bytes] = []
    for pool in pool_sizes(kv):
        keys = allocate(pages * pool.k_bytes, "the KV pages")
        pools += [keys, keys if pool.shared else allocate(pages * pool.v_bytes, "the KV pages")]
    return tuple(pools)


def _allocate_states(states: tuple[StateEntry, ...], slots: int) -> tuple[Bytes, ...]:
    """The pool of each state, in the order of the step's `states` argument."""
    return tuple(allocate(slots * s.nbytes, "the recurrent states") for s in states)


def _addresses(arrays: tuple[Bytes, ...]) -> npt.NDArray[np.uintp]:
    return np.array([array.ctypes.data for array in arrays], np.uintp)
