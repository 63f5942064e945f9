"""A GPU through NVIDIA's driver, by the bindings of cuda-python."""

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from inferc.errors import ArtifactError, InfercError
from inferc.runtime.executors.cuda_bindings import CudaError, call, found, open_driver
from inferc.runtime.executors.cuda_device import (
    MIB,
    DeviceFacts,
    KernelName,
    LaunchFailure,
    OutOfDeviceMemory,
)
from inferc.runtime.executors.cuda_options import CudaOptions
from inferc.runtime.executors.memory import Bytes

_LAUNCH_DEPENDENT = 1
_LAUNCH_KERNEL_SINCE = 12000
"""The version of the interface of cuLaunchKernelEx that `driver_launch.h` declares."""


class DriverContext(ctypes.Structure):
    """`inferc_cuda_driver_context` of `cuda/driver_launch.h`."""

    _fields_ = (
        ("launch_kernel", ctypes.c_void_p),
        ("synchronize", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("functions", ctypes.c_void_p),
        ("allowed_flags", ctypes.c_uint32),
        ("failed_kernel", ctypes.c_int32),
        ("error", ctypes.c_int32),
    )


class DriverLauncher:
    """`inferc_cuda_driver_launch` of a step library, with the kernels of its cubins."""

    def __init__(self, library: ctypes.CDLL, context: DriverContext, functions: Any) -> None:
        self._launch = library.inferc_cuda_driver_launch
        self._context = context
        self._functions = functions  # the context points to them

    @property
    def function(self) -> int:
        """Address of the function."""
        return ctypes.cast(self._launch, ctypes.c_void_p).value or 0

    @property
    def context(self) -> int:
        """Address of its context."""
        return ctypes.addressof(self._context)

    def take_failure(self) -> LaunchFailure | None:
        """The launch that failed first since the last call."""
        kernel, error = self._context.failed_kernel, self._context.error
        self._context.failed_kernel, self._context.error = -1, 0
        return None if kernel < 0 else LaunchFailure(kernel, found(error))


class CudaDriver:
    """One GPU: its primary context, one stream, and what was allocated there."""

    def __init__(self, index: int, options: CudaOptions) -> None:
        self._options = options
        self._driver = driver = open_driver()
        count = call(driver.cuDeviceGetCount)
        if not 0 <= index < count:
            there = f"0 to {count - 1}" if count > 1 else "0 only" if count else "none"
            raise InfercError(f"device cuda:{index}: expected a device of this machine ({there}).")
        self._device = call(driver.cuDeviceGet, index)
        self.facts = self._read_facts(index)
        self._context = call(driver.cuDevicePrimaryCtxRetain, self._device)
        self._closed = False
        self.attach()
        self._stream = call(driver.cuStreamCreate, driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        self._memory: list[int] = []
        self._host_memory: list[int] = []
        self._modules: list[Any] = []
        self._graphs: list[Any] = []

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
        )

    def _attribute(self, name: str) -> int:
        attribute = getattr(self._driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(call(self._driver.cuDeviceGetAttribute, attribute, self._device))

    # -- memory and copies ------------------------------------------------------------------

    def attach(self) -> None:
        """Make the context current in the calling thread."""
        if self._closed:
            raise InfercError("The engine has been closed; load the artifact again.")
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
        """Until the stream is empty."""
        call(self._driver.cuStreamSynchronize, self._stream)

    # -- kernels ----------------------------------------------------------------------------

    def launcher(
        self, library: ctypes.CDLL, kernels: Sequence[KernelName], folder: Path
    ) -> DriverLauncher:
        """Load `<unit>.cubin` of every unit, and find every kernel in its own."""
        modules = {unit: self._load(folder / f"{unit}.cubin") for unit in _units(kernels)}
        handles = [self._function(modules[k.unit], k.kernel, folder) for k in kernels]
        functions = (ctypes.c_void_p * len(handles))(*handles)
        context = DriverContext(
            launch_kernel=self._procedure(b"cuLaunchKernelEx"),
            synchronize=(
                self._procedure(b"cuStreamSynchronize") if self._options.check_launches else None
            ),
            stream=int(self._stream),
            functions=ctypes.addressof(functions),
            allowed_flags=_LAUNCH_DEPENDENT if self._dependent_launch() else 0,
            failed_kernel=-1,
        )
        return DriverLauncher(library, context, functions)

    def _dependent_launch(self) -> bool:
        return self._options.dependent_launch and self.facts.capability >= (9, 0)

    def _procedure(self, name: bytes) -> int:
        address, _ = call(self._driver.cuGetProcAddress, name, _LAUNCH_KERNEL_SINCE, 0)
        if not address:
            raise InfercError(f"NVIDIA's driver has no {name.decode()}; install a newer one.")
        return int(address)

    def _load(self, path: Path) -> Any:
        try:
            module = call(self._driver.cuModuleLoadData, path.read_bytes())
        except OSError as error:
            raise ArtifactError(
                f"{path}: the kernels cannot be read ({error.strerror})."
            ) from error
        except CudaError as error:
            raise ArtifactError(
                f"{path}: {self.facts.label} does not take these kernels ({error.short});"
                " compile the model again for it, or install a newer driver."
            ) from error
        self._modules.append(module)
        return module

    def _function(self, module: Any, name: str, folder: Path) -> int:
        """A kernel that may use all shared memory that a block can have."""
        driver = self._driver
        try:
            function = call(driver.cuModuleGetFunction, module, name.encode())
        except CudaError as error:
            raise ArtifactError(
                f"{folder}: the kernel {name} is not in its cubin ({error.short}); compile the"
                " model again."
            ) from error
        kind = driver.CUfunction_attribute
        static = call(driver.cuFuncGetAttribute, kind.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function)
        most = self._attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN") - int(static)
        attribute = kind.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        call(driver.cuFuncSetAttribute, function, attribute, most)
        return int(function)

    # -- graphs -----------------------------------------------------------------------------

    def capture(self, work: Callable[[], None]) -> Any:
        """An executable graph of what `work` launches."""
        driver = self._driver
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        call(driver.cuStreamBeginCapture, self._stream, mode)
        try:
            work()
        except BaseException:
            driver.cuStreamEndCapture(self._stream)  # its own error would hide the first
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

    def close(self) -> None:
        """Give back graphs, kernels, memory, stream and context; safe to call twice."""
        if self._closed:
            return
        driver = self._driver
        self._closed = True
        # A device that has failed refuses everything: what can be given back, is.
        driver.cuCtxSetCurrent(self._context)
        driver.cuStreamSynchronize(self._stream)
        for graph in self._graphs:
            driver.cuGraphExecDestroy(graph)
        for module in self._modules:
            driver.cuModuleUnload(module)
        for address in self._memory:
            driver.cuMemFree(address)
        for address in self._host_memory:
            driver.cuMemFreeHost(address)
        driver.cuStreamDestroy(self._stream)
        driver.cuDevicePrimaryCtxRelease(self._device)


def _units(kernels: Sequence[KernelName]) -> list[str]:
    return sorted({kernel.unit for kernel in kernels})
