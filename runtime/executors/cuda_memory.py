"""Device memory of an artifact: what it adds up to, and weights on their way from the file."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from inferc.runtime.artifact import Manifest, PackedTensor, artifact_path
from inferc.runtime.executors.cuda_device import MIB, Device
from inferc.runtime.executors.memory import Bytes, map_weights
from inferc.runtime.kv_budget import KvBudget
from inferc.runtime.state_slots import state_slots

ALIGNMENT_BYTES = 256
_STAGING_BYTES = 32 * MIB
RESERVE_BYTES = 256 * MIB
"""Left free: kernels and graphs of this process, and what else runs on the device."""


@dataclass(frozen=True)
class Region:
    """Parts of one allocation: offset of each, and bytes in all."""

    offsets: tuple[int, ...]
    nbytes: int


def layout(sizes: Sequence[int]) -> Region:
    """Parts of these sizes, one behind the other, each aligned."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return Region(tuple(offsets), end)


def weights_region(tensors: tuple[PackedTensor, ...]) -> Region:
    """Weights as they lie in the file, from the first on, with the same alignment."""
    if not tensors:
        return Region((), 0)
    first = min(tensor.offset_bytes for tensor in tensors)
    start = first - first % ALIGNMENT_BYTES
    end = max(tensor.offset_bytes + tensor.nbytes for tensor in tensors)
    return Region(tuple(tensor.offset_bytes - start for tensor in tensors), end - start)


@dataclass(frozen=True)
class DevicePlan:
    """Bytes of each allocation but the KV pages."""

    weights: int
    states: int
    arena: int
    scratch: int
    inputs: int
    logits: int

    @property
    def fixed(self) -> int:
        """All of them."""
        parts = (self.weights, self.states, self.arena, self.scratch, self.inputs, self.logits)
        return sum(parts)

    def refusal(self, label: str, kv: KvBudget | None, free: int) -> str:
        """That it does not fit, with all numbers."""
        parts = {
            "weights": self.weights,
            f"KV pages ({kv.tokens} tokens)" if kv else "KV pages": kv.nbytes if kv else 0,
            "recurrent states": self.states,
            "arena": self.arena,
            "scratch": self.scratch,
            "inputs and logits": self.inputs + self.logits,
        }
        listed = ", ".join(f"{n / MIB:.0f} MiB {name}" for name, n in parts.items() if n)
        needed = self.fixed + (kv.nbytes if kv else 0)
        return (
            f"{label}: the model does not fit: it needs {needed / MIB:.0f} MiB ({listed}) and"
            f" {RESERVE_BYTES / MIB:.0f} MiB to spare, and {free / MIB:.0f} MiB are free. Lower"
            " kv_budget_bytes, compile with fewer step_tokens, sequences or context_tokens, or"
            " with smaller weights."
        )


def device_plan(manifest: Manifest, scratch_bytes: int, inputs: int, logits: int) -> DevicePlan:
    """What an artifact needs on the device, whatever the KV budget."""
    slots = state_slots(manifest.limits.sequences)
    return DevicePlan(
        weights=weights_region(manifest.weights.tensors).nbytes,
        states=layout([slots * state.nbytes for state in manifest.states]).nbytes,
        arena=manifest.memory.arena_bytes,
        scratch=scratch_bytes,
        inputs=inputs,
        logits=logits,
    )


def upload_weights(device: Device, folder: Path, manifest: Manifest) -> tuple[int, ...]:
    """Copy all weights into one allocation; addresses in order of the manifest.

    Two pinned buffers take turns: one is filled from the file while the other is copied.
    """
    tensors = manifest.weights.tensors
    region = weights_region(tensors)
    base = device.allocate(region.nbytes, "the weights")
    path = artifact_path(folder, manifest.weights.file)
    views = map_weights(path, tensors)
    span = region.nbytes
    staging = [device.pinned(min(_STAGING_BYTES, span), "staging of weights") for _ in range(2)]
    stager = _Stager(device, base, staging)
    for offset, view in sorted(zip(region.offsets, views, strict=True), key=lambda pair: pair[0]):
        stager.add(offset, view)
    stager.finish()
    for buffer in staging:
        device.unpin(buffer)
    return tuple(base + offset for offset in region.offsets)


class _Stager:
    """Gathers neighbouring tensors into copies as large as a staging buffer."""

    def __init__(self, device: Device, base: int, staging: list[Bytes]) -> None:
        self._device, self._base, self._staging = device, base, staging
        self._marks: list[object | None] = [None] * len(staging)
        self._turn, self._start, self._end = 0, 0, 0

    def add(self, offset: int, view: Bytes) -> None:
        """Bytes for `offset` of the allocation, behind all that were added before."""
        room = len(self._staging[0])
        done = 0
        while done < len(view):
            at = offset + done
            if self._end and at - self._start >= room:
                self._send()
            if not self._end:
                self._begin(at)
            count = min(len(view) - done, room - (at - self._start))
            first = at - self._start
            self._staging[self._turn][first : first + count] = view[done : done + count]
            self._end = first + count
            done += count

    def finish(self) -> None:
        """Send the rest and wait for all."""
        if self._end:
            self._send()
        for turn in range(len(self._staging)):
            self._wait(turn)

    def _begin(self, start: int) -> None:
        self._wait(self._turn)
        self._start = start

    def _wait(self, turn: int) -> None:
        mark, self._marks[turn] = self._marks[turn], None
        if mark is not None:
            self._device.wait(mark)

    def _send(self) -> None:
        buffer = self._staging[self._turn]
        self._device.upload(self._base + self._start, buffer[: self._end])
        self._marks[self._turn] = self._device.mark()
        self._turn = (self._turn + 1) % len(self._staging)
        self._end = 0
