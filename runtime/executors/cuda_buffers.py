"""All memory of an artifact on a device: one allocation each, made once."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inferc.errors import InfercError
from inferc.runtime.artifact import KvPlan, Manifest
from inferc.runtime.executors.cuda_device import Device, OutOfDeviceMemory
from inferc.runtime.executors.cuda_memory import (
    RESERVE_BYTES,
    DevicePlan,
    layout,
    upload_weights,
)
from inferc.runtime.executors.kv_pools import pool_sizes
from inferc.runtime.executors.memory import Bytes
from inferc.runtime.executors.step_library import StepArgs
from inferc.runtime.kv_budget import KvBudget
from inferc.runtime.state_slots import state_slots


@dataclass
class DeviceBuffers:
    """Addresses on the device, and the pinned memory that is copied from and to.

    Attributes:
        budget: the KV pages that sequences can have.
        spare_page: a page beyond them.
        weights: host array of an address a weight; so are `caches` (two a cache) and `states`.
        weights_bytes: size of each weight.
    """

    device: Device
    budget: KvBudget
    weights: Any
    weights_bytes: tuple[int, ...]
    caches: Any
    states: Any
    arena: int
    scratch: int
    inputs: int
    host_inputs: Bytes
    logits: int
    host_logits: Bytes
    spare_page: int = field(init=False)

    def __post_init__(self) -> None:
        self.spare_page = self.budget.pages

    def bind_args(self) -> StepArgs:
        """Everything in the step's arguments that never changes."""
        return StepArgs(
            weights=ctypes.addressof(self.weights),
            caches=ctypes.addressof(self.caches),
            states=ctypes.addressof(self.states),
            arena=self.arena,
        )

    def overwrite_weights(self, pattern: Bytes) -> None:
        """Fill every weight with a pattern."""
        source = self.device.pinned(len(pattern), "a pattern")
        source[:] = pattern
        for address, nbytes in zip(self.weights, self.weights_bytes, strict=False):
            for start in range(0, nbytes, len(source)):
                part = source[: min(nbytes - start, len(source))]
                self.device.upload(address + start, part)
        self.device.synchronize()
        self.device.unpin(source)

    def ensure_logits(self, nbytes: int) -> bool:
        """Room for so many bytes of logits; True if they have another address now.

        Serving needs a row a sequence; only `Engine.logits` asks for more.
        """
        if nbytes <= len(self.host_logits):
            return False
        device = self.device
        device.synchronize()
        address = device.allocate(nbytes, "the logits")
        host = device.pinned(nbytes, "the logits")
        device.free(self.logits)
        device.unpin(self.host_logits)
        self.logits, self.host_logits = address, host
        return True


def allocate_buffers(
    device: Device,
    folder: Path,
    manifest: Manifest,
    plan: DevicePlan,
    make_budget: Callable[[int], KvBudget],
) -> DeviceBuffers:
    """Everything, with the weights copied. Raises InfercError with all sizes if it does not fit."""
    free = device.free_bytes()
    room = free - plan.fixed - RESERVE_BYTES
    page_bytes = manifest.kv.page_bytes
    if room < 2 * page_bytes:
        raise InfercError(plan.refusal(device.facts.label, None, free))
    budget = make_budget(room - page_bytes)
    if budget.nbytes + page_bytes > room:
        raise InfercError(plan.refusal(device.facts.label, budget, free))
    try:
        return _allocate(device, folder, manifest, plan, budget)
    except OutOfDeviceMemory as error:
        raise InfercError(f"{error} {plan.refusal(device.facts.label, budget, free)}") from error


def _allocate(
    device: Device, folder: Path, manifest: Manifest, plan: DevicePlan, budget: KvBudget
) -> DeviceBuffers:
    buffers = DeviceBuffers(
        device=device,
        budget=budget,
        weights=address_array(upload_weights(device, folder, manifest)),
        weights_bytes=tuple(tensor.nbytes for tensor in manifest.weights.tensors),
        caches=address_array(_allocate_pools(device, manifest.kv, budget.pages + 1)),
        states=address_array(_allocate_states(device, manifest)),
        arena=device.allocate(plan.arena, "the arena"),
        scratch=device.allocate(plan.scratch, "the scratch memory"),
        inputs=device.allocate(plan.inputs, "the inputs"),
        host_inputs=device.pinned(plan.inputs, "the inputs"),
        logits=device.allocate(plan.logits, "the logits"),
        host_logits=device.pinned(plan.logits, "the logits"),
    )
    device.synchronize()
    return buffers


def _allocate_pools(device: Device, kv: KvPlan, pages: int) -> tuple[int, ...]:
    """Addresses of the K and V pool of each cache, in one allocation of zeros."""
    pools = pool_sizes(kv)
    sizes = [pages * n for pool in pools for n in (pool.k_bytes, pool.v_bytes)]
    region = layout(sizes)
    base = _zeroed(device, region.nbytes, "the KV pages")
    keys, values = region.offsets[::2], region.offsets[1::2]
    addresses: list[int] = []
    for pool, k, v in zip(pools, keys, values, strict=True):
        addresses += [base + k, base + (k if pool.shared else v)]
    return tuple(addresses)


def _allocate_states(device: Device, manifest: Manifest) -> tuple[int, ...]:
    """Addresses of the pool of each recurrent state, in one allocation of zeros."""
    slots = state_slots(manifest.limits.sequences)
    region = layout([slots * state.nbytes for state in manifest.states])
    base = _zeroed(device, region.nbytes, "the recurrent states")
    return tuple(base + offset for offset in region.offsets)


def _zeroed(device: Device, nbytes: int, what: str) -> int:
    address = device.allocate(nbytes, what)
    if nbytes:
        device.zero(address, nbytes)
    return address


def address_array(addresses: tuple[int, ...]) -> Any:
    """A host array of device addresses."""
    return (ctypes.c_void_p * max(len(addresses), 1))(*addresses)
