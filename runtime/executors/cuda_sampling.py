"""Sampling on the device by the kernels of the step library: only tokens come back."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from inferc.runtime.executors.cuda_device import Device
from inferc.runtime.executors.cuda_library import CudaContext, SampleArgs
from inferc.runtime.executors.memory import Bytes
from inferc.runtime.request import Sampled
from inferc.runtime.sample_rows import SAMPLED, TOP, SampleRows
from inferc.runtime.sampler import logits_are_nan

Launch = Callable[[CudaContext, SampleArgs], None]
SizeOf = Callable[[int, int, int], int]


class GrowingBuffer:
    """Memory of the device that is made anew, larger, when more is needed."""

    def __init__(self, device: Device, what: str, pinned: bool) -> None:
        self._device, self._what, self._pinned = device, what, pinned
        self.address = 0
        self.host: Bytes = np.empty(0, np.uint8)
        self._nbytes = 0

    def ensure(self, nbytes: int) -> None:
        """Room for so many bytes; what was in it is lost."""
        if nbytes <= self._nbytes:
            return
        self._device.synchronize()
        if self._nbytes:
            self._device.free(self.address)
            if self._pinned:
                self._device.unpin(self.host)
        self._nbytes = max(nbytes, 2 * self._nbytes)
        self.address = self._device.allocate(self._nbytes, self._what)
        if self._pinned:
            self.host = self._device.pinned(self._nbytes, self._what)


@dataclass(frozen=True)
class _Layout:
    """Offsets in the block that goes to the device, and in the one that comes back."""

    edits: int
    sent_bytes: int
    top: int
    returned_bytes: int


class DeviceSampler:
    """Chooses a token for each row of logits that lie on the device."""

    def __init__(self, device: Device, launch: Launch, workspace_bytes: SizeOf) -> None:
        self._device, self._launch, self._workspace_bytes = device, launch, workspace_bytes
        self._sent = GrowingBuffer(device, "rows to be sampled", pinned=True)
        self._returned = GrowingBuffer(device, "sampled tokens", pinned=True)
        self._workspace = GrowingBuffer(device, "sampling", pinned=False)
        self._holes = GrowingBuffer(device, "ids that are no tokens", pinned=True)
        self._known_holes: npt.NDArray[np.int32] | None = None

    def launch(self, context: CudaContext, logits: int, stride: int, rows: SampleRows) -> None:
        """Sample behind the step that has been launched; `finish` waits."""
        count, most = len(rows.rows), rows.most_logprobs
        layout = _layout(rows)
        self._sent.ensure(layout.sent_bytes)
        self._returned.ensure(layout.returned_bytes)
        self._workspace.ensure(self._workspace_bytes(count, rows.columns, len(rows.edits)))
        self._send(rows, layout)
        args = SampleArgs(
            logits=logits,
            stride=stride,
            rows=count,
            columns=rows.columns,
            holes=self._holes.address,
            hole_count=len(rows.holes),
            top_stride=most,
            rows_host=rows.rows.ctypes.data,
            parameters=self._sent.address,
            edits=self._sent.address + layout.edits,
            edit_count=len(rows.edits),
            sampled=self._returned.address,
            top=self._returned.address + layout.top if most else None,
            workspace=self._workspace.address,
        )
        self._launch(context, args)
        returned = self._returned
        self._device.download(returned.host[: layout.returned_bytes], returned.address)

    def finish(self, rows: SampleRows) -> list[Sampled]:
        """The tokens of the last `launch`. Raises InfercError for logits that are no numbers."""
        self._device.synchronize()
        layout, most, count = _layout(rows), rows.most_logprobs, len(rows.rows)
        host = self._returned.host
        sampled = host[: count * SAMPLED.itemsize].view(SAMPLED)
        if sampled["status"].any():
            raise logits_are_nan()
        top = host[layout.top : layout.returned_bytes].view(TOP).reshape(count, most)
        wanted = rows.rows["logprobs"].tolist()
        return [_sampled(sampled[i], top[i], wanted[i]) for i in range(count)]

    def _send(self, rows: SampleRows, layout: _Layout) -> None:
        host = self._sent.host
        host[: rows.rows.nbytes] = rows.rows.view(np.uint8)
        host[layout.edits : layout.edits + rows.edits.nbytes] = rows.edits.view(np.uint8)
        self._device.upload(self._sent.address, host[: layout.sent_bytes])
        if rows.holes is not self._known_holes:
            self._known_holes = rows.holes
            if len(rows.holes):
                self._holes.ensure(rows.holes.nbytes)
                self._holes.host[: rows.holes.nbytes] = rows.holes.view(np.uint8)
                self._device.upload(self._holes.address, self._holes.host[: rows.holes.nbytes])


def _layout(rows: SampleRows) -> _Layout:
    edits = -(-rows.rows.nbytes // 64) * 64
    top = len(rows.rows) * SAMPLED.itemsize
    return _Layout(
        edits,
        edits + rows.edits.nbytes,
        top,
        top + len(rows.rows) * rows.most_logprobs * TOP.itemsize,
    )


def _sampled(found: Any, top: Any, wanted: int) -> Sampled:
    if wanted < 0:
        return Sampled(int(found["token"]))
    pairs = tuple((int(t["token"]), float(t["logprob"])) for t in top[:wanted])
    return Sampled(int(found["token"]), float(found["logprob"]), pairs)
