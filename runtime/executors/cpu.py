"""Runs plans on the CPU: one call of the compiled step each, with nothing allocated in between."""

import ctypes
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
from inferc.runtime.state_slots import state_slots
from inferc.runtime.step_inputs import StepInputs, check_limits
from inferc.runtime.target_choice import select_target


class CpuExecutor:
    """The step library of one artifact, with weights, KV pages, recurrent states and arena."""

    def __init__(self, folder: Path, manifest: Manifest, budget: KvBudget, threads: int) -> None:
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
        self._weight_pointers = _addresses(self._weights)
        self._pool_pointers = _addresses(self._pools)
        self._state_pointers = _addresses(self._states)
        self._args = self._bind_args()
        self._library = StepLibrary(artifact_path(folder, target.library), threads)

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
        check_limits(plan, self._limits)
        shape = self._inputs.fill(plan)
        if shape.logit_rows > len(self._logits):
            self._grow_logits(shape.logit_rows)
        args = self._args
        args.tokens = shape.tokens
        args.sequences = shape.sequences
        args.logit_rows = shape.logit_rows
        self._library.run(args, shape.decode)
        return self._logits[: shape.logit_rows]

    def close(self) -> None:
        """Stop the worker threads; memory goes with the object."""
        self._library.close()

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
