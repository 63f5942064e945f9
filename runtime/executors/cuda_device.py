"""What the CUDA executor asks of a device.

`cuda_driver.CudaDriver` is a GPU; tests have a device of host memory whose kernels are emulated.
Copies and launches go into one stream, in order; they may be pending until `wait` or `synchronize`.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from inferc.errors import InfercError
from inferc.runtime.executors.memory import Bytes

MIB = 2**20


class OutOfDeviceMemory(InfercError):
    """An allocation did not fit."""


@dataclass(frozen=True)
class DeviceFacts:
    """What a device is.

    Attributes:
        label: names it in errors.
        capability: its compute capability.
        multiprocessors: how many it has.
        driver_version: 1000 * major + 10 * minor of the CUDA that its driver knows.
    """

    label: str
    capability: tuple[int, int]
    multiprocessors: int
    driver_version: int


@dataclass(frozen=True)
class KernelName:
    """A kernel, and the unit whose cubin it is in."""

    kernel: str
    unit: str


@dataclass(frozen=True)
class LaunchFailure:
    """The first launch of a step that failed: its kernel (a number), and the driver's error."""

    kernel: int
    error: str


class Launcher(Protocol):
    """The function that a step library launches through: `inferc_launch` of step_abi.h."""

    @property
    def function(self) -> int:
        """Address of the function."""
        ...

    @property
    def context(self) -> int:
        """Address of its context."""
        ...

    def take_failure(self) -> LaunchFailure | None:
        """What went wrong since the last call."""
        ...


class Device(Protocol):
    """One device. Addresses are ints; host memory that takes part in copies comes from `pinned`."""

    @property
    def facts(self) -> DeviceFacts:
        """What the device is."""
        ...

    def attach(self) -> None:
        """Make the device usable from the calling thread."""
        ...

    def free_bytes(self) -> int:
        """Memory that nobody has allocated."""
        ...

    def allocate(self, nbytes: int, what: str) -> int:
        """Device memory, 256-byte aligned, until `close`. Raises OutOfDeviceMemory."""
        ...

    def pinned(self, nbytes: int, what: str) -> Bytes:
        """Host memory that copies can be asynchronous with, until `close`."""
        ...

    def free(self, address: int) -> None:
        """Give device memory back; everything that uses it has been waited for."""
        ...

    def unpin(self, memory: Bytes) -> None:
        """Give pinned memory back; nobody may look at it afterwards."""
        ...

    def zero(self, address: int, nbytes: int) -> None:
        """Fill with zero bytes."""
        ...

    def upload(self, address: int, source: Bytes) -> None:
        """Copy to the device; `source` must stay as it is until the copy has been waited for."""
        ...

    def download(self, target: Bytes, address: int) -> None:
        """Copy from the device; `target` is valid after waiting."""
        ...

    def mark(self) -> Any:
        """A point in the stream, after everything so far."""
        ...

    def wait(self, mark: Any) -> None:
        """Until everything before `mark` has been done."""
        ...

    def synchronize(self) -> None:
        """Until everything has been done. Raises InfercError for what failed meanwhile."""
        ...

    def copy_bandwidth(self) -> float:
        """Bytes a second that a copy within the device reads and writes, the best of some."""
        ...

    def timestamp(self) -> Any:
        """A point in the stream whose time is taken."""
        ...

    def milliseconds(self, start: Any, end: Any) -> float:
        """Time between two timestamps, which are used up together; waits for them."""
        ...

    def keep_busy(self) -> None:
        """Some ten milliseconds of work, so that what follows is waiting when its turn comes."""
        ...

    def launcher(
        self, library: ctypes.CDLL, kernels: Sequence[KernelName], folder: Path
    ) -> Launcher:
        """Load the cubins of a folder. Raises ArtifactError if one is missing or unfit."""
        ...

    def capture(self, work: Callable[[], None]) -> Any:
        """The launches of `work` as a graph; nothing runs."""
        ...

    def replay(self, graph: Any) -> None:
        """Run a graph once."""
        ...

    def discard(self, graph: Any) -> None:
        """Forget a graph."""
        ...

    def close(self) -> None:
        """Give everything back; safe to call twice."""
        ...
