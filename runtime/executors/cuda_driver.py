"""A GPU through NVIDIA's driver, by the bindings of cuda-python."""

import ctypes
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from inferc.errors import InfercError
from inferc.runtime.executors.cuda_bindings import CudaError, call, open_driver
from inferc.runtime.executors.cuda_device import (
    MIB,
    DeviceFacts,
    KernelName,
    OutOfDeviceMemory,
)
from inferc.runtime.executors.cuda_driver_launch import DriverLauncher, KernelLoader
from inferc.runtime.executors.cuda_options import VARIABLE, CudaOptions
from inferc.runtime.executors.memory import Bytes

_MOST_COPIED_BYTES = 1024 * MIB
"""Far beyond the second-level cache of any GPU."""
_FILLS = 60


class CudaDriver:
    """One GPU: its primary context, one stream, and what was allocated there."""

    def __init__(self, index: int, options: CudaOptions) -> None:
        self._driver = driver = open_driver()
        count = call(driver.cuDeviceGetCount)
        if not 0 <= index < count:
            there = f"0 to {count - 1}" if count > 1 else "0 only" if count else "none"
            raise InfercError(f"device cuda:{index}: expected a device of this machine ({there}).")
        self._device = call(driver.cuDeviceGet, index)
        self.facts = self._read_facts(index)
        self._context = call(driver.cuDevicePrimaryCtxRetain, self._device)
        self._process = os.getpid()
        self._closed = False
        self.attach()
        self._stream = call(driver.cuStreamCreate, driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        self._memory: list[int] = []
        self._host_memory: list[int] = []
        most = self._attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        self._loader = KernelLoader(driver, self.facts, options, most)
        self._graphs: list[Any] = []
        self._busy: list[int] = []

    def _read_facts(self, index: int) -> DeviceFacts:
        name = call(self._driver.cuDeviceGetName, 256, self._device).split(b"\0")[0].decode()
        capability = (
            self._attribute("COMPUTE_CAPABILITY_MAJOR"),
            self._attribute("COMPUTE_CAPABILITY_MINOR"),
        )
        return DeviceFacts(
            f"cuda:{index} ({name}, compute capability {capability[0]}.{capability[1]})",
            capability,
            self._attribute("MULTIPROCESSOR_COUNT"),
            int(call(self._driver.cuDriverGetVersion)),
        )

    def _attribute(self, name: str) -> int:
        attribute = getattr(self._driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(call(self._driver.cuDeviceGetAttribute, attribute, self._device))

    # -- memory and copies ------------------------------------------------------------------

    def attach(self) -> None:
        """Make the context current in the calling thread."""
        if self._closed:
            raise InfercError("The engine has been closed; load the artifact again.")
        if self._process != os.getpid():
            raise InfercError(
                "The engine was loaded before this process was forked, and a device does not come"
                " along; load the artifact in the process that uses it."
            )
        call(self._driver.cuCtxSetCurrent, self._context)

    def free_bytes(self) -> int:
        """Memory that no process has allocated."""
        return int(call(self._driver.cuMemGetInfo)[0])

    def allocate(self, nbytes: int, what: str) -> int:
        """Device memory; the driver aligns it to 256 bytes at least."""
        try:
            address = int(call(self._driver.cuMemAlloc, max(nbytes, 1)))
        except CudaError as error:
            if not error.is_called("OUT_OF_MEMORY"):
                raise
            raise OutOfDeviceMemory(
                f"{self.facts.label}: {nbytes / MIB:.0f} MiB for {what} do not fit; "
                f"{self.free_bytes() / MIB:.0f} MiB are free."
            ) from error
        self._memory.append(address)
        return address

    def pinned(self, nbytes: int, what: str) -> Bytes:
        """Host memory that the device reads and writes by itself."""
        try:
            flags = self._driver.CU_MEMHOSTALLOC_PORTABLE
            address = int(call(self._driver.cuMemHostAlloc, max(nbytes, 1), flags))
        except CudaError as error:
            raise InfercError(f"{nbytes} pinned bytes for {what}: {error}") from error
        self._host_memory.append(address)
        memory = (ctypes.c_uint8 * max(nbytes, 1)).from_address(address)
        return np.frombuffer(memoryview(memory), np.uint8)

    def free(self, address: int) -> None:
        """Give device memory back."""
        self._memory.remove(address)
        call(self._driver.cuMemFree, address)

    def unpin(self, memory: Bytes) -> None:
        """Give pinned memory back."""
        self._host_memory.remove(memory.ctypes.data)
        call(self._driver.cuMemFreeHost, memory.ctypes.data)

    def zero(self, address: int, nbytes: int) -> None:
        """Fill with zero bytes."""
        call(self._driver.cuMemsetD8Async, address, 0, nbytes, self._stream)

    def upload(self, address: int, source: Bytes) -> None:
        """Copy to the device, asynchronously."""
        host = source.ctypes.data
        call(self._driver.cuMemcpyHtoDAsync, address, host, source.nbytes, self._stream)

    def download(self, target: Bytes, address: int) -> None:
        """Copy from the device, asynchronously."""
        host = target.ctypes.data
        call(self._driver.cuMemcpyDtoHAsync, host, address, target.nbytes, self._stream)

    def copy_bandwidth(self) -> float:
        """Bytes a second that a copy within the device reads and writes, the best of ten."""
        driver, stream = self._driver, self._stream
        nbytes = min(_MOST_COPIED_BYTES, self.free_bytes() // 4)
        source, target = (self.allocate(nbytes, "measuring the bandwidth") for _ in range(2))
        times_ms = []
        for _ in range(10):
            start = self.timestamp()
            call(driver.cuMemcpyDtoDAsync, target, source, nbytes, stream)
            times_ms.append(self.milliseconds(start, self.timestamp()))
        self.free(source)
        self.free(target)
        return 2 * nbytes / min(times_ms) * 1e3

    def mark(self) -> Any:
        """An event behind everything so far."""
        flags = self._driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
        event = call(self._driver.cuEventCreate, flags)
        call(self._driver.cuEventRecord, event, self._stream)
        return event

    def wait(self, mark: Any) -> None:
        """Until the event; it is used up."""
        call(self._driver.cuEventSynchronize, mark)
        call(self._driver.cuEventDestroy, mark)

    def synchronize(self) -> None:
        """Until the stream is empty. After an error the device refuses this process."""
        try:
            call(self._driver.cuStreamSynchronize, self._stream)
        except CudaError as error:
            raise InfercError(
                f"{self.facts.label}: the step failed: {error.short}. Load the artifact in a new"
                f" process; with {VARIABLE}=check-launches the kernel that fails is named."
            ) from error
        while self._busy:
            self.free(self._busy.pop())

    # -- times --------------------------------------------------------------------------------

    def timestamp(self) -> Any:
        """An event that takes the time."""
        event = call(self._driver.cuEventCreate, self._driver.CUevent_flags.CU_EVENT_DEFAULT)
        call(self._driver.cuEventRecord, event, self._stream)
        return event

    def milliseconds(self, start: Any, end: Any) -> float:
        """Time between two events."""
        call(self._driver.cuEventSynchronize, end)
        elapsed = float(call(self._driver.cuEventElapsedTime, start, end))
        for event in (start, end):
            call(self._driver.cuEventDestroy, event)
        return elapsed

    def keep_busy(self) -> None:
        """Fill memory again and again; the copies of a step that follows wait for it."""
        nbytes = min(_MOST_COPIED_BYTES, self.free_bytes() // 4)
        target = self.allocate(nbytes, "keeping the device busy")
        for _ in range(_FILLS):
            self.zero(target, nbytes)
        self._busy.append(target)

    # -- kernels and graphs -----------------------------------------------------------------

    def launcher(
        self, library: ctypes.CDLL, kernels: Sequence[KernelName], folder: Path
    ) -> DriverLauncher:
        """Load `<unit>.cubin` of every unit, and find every kernel in its own."""
        return self._loader.launcher(library, kernels, folder, int(self._stream))

    def capture(self, work: Callable[[], None]) -> Any:
        """An executable graph of what `work` launches."""
        driver = self._driver
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        call(driver.cuStreamBeginCapture, self._stream, mode)
        try:
            work()
        except BaseException:
            # An error of its own would hide the first.
            _, unfinished = driver.cuStreamEndCapture(self._stream)
            if unfinished is not None and int(unfinished):
                driver.cuGraphDestroy(unfinished)
            raise
        graph = call(driver.cuStreamEndCapture, self._stream)
        try:
            executable = call(driver.cuGraphInstantiate, graph, 0)
        finally:
            call(driver.cuGraphDestroy, graph)
        self._graphs.append(executable)
        return executable

    def replay(self, graph: Any) -> None:
        """Launch a graph."""
        call(self._driver.cuGraphLaunch, graph, self._stream)

    def discard(self, graph: Any) -> None:
        """Destroy a graph; the driver waits until it has run."""
        self._graphs.remove(graph)
        call(self._driver.cuGraphExecDestroy, graph)

    def __del__(self) -> None:
        """An engine that is dropped without being closed gives back as well."""
        if not getattr(self, "_closed", True):
            self.close()

    def close(self) -> None:
        """Give back graphs, kernels, memory, stream and context; safe to call twice."""
        if self._closed:
            return
        driver = self._driver
        self._closed = True
        if self._process != os.getpid():
            return  # they belong to the process that this one was forked from
        # A device that has failed refuses everything: what can be given back, is.
        driver.cuCtxSetCurrent(self._context)
        driver.cuStreamSynchronize(self._stream)
        for graph in self._graphs:
            driver.cuGraphExecDestroy(graph)
        for module in self._loader.modules:
            driver.cuModuleUnload(module)
        for address in self._memory:
            driver.cuMemFree(address)
        for address in self._host_memory:
            driver.cuMemFreeHost(address)
        driver.cuStreamDestroy(self._stream)
        driver.cuDevicePrimaryCtxRelease(self._device)
