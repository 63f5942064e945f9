"""Kernels of cubins, launched by a step library through the driver's own function."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inferc.errors import ArtifactError, InfercError
from inferc.runtime.executors.cuda_bindings import CudaError, call, found
from inferc.runtime.executors.cuda_device import DeviceFacts, KernelName, LaunchFailure
from inferc.runtime.executors.cuda_options import CudaOptions

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


@dataclass(frozen=True)
class KernelLoader:
    """Loads cubins into the current context; `modules` are those that it loaded."""

    driver: Any
    facts: DeviceFacts
    options: CudaOptions
    most_shared_bytes: int
    modules: list[Any] = field(default_factory=list)

    def launcher(
        self, library: ctypes.CDLL, kernels: Sequence[KernelName], folder: Path, stream: int
    ) -> DriverLauncher:
        """Load `<unit>.cubin` of every unit, and find every kernel in its own."""
        units = sorted({kernel.unit for kernel in kernels})
        modules = {unit: self._load(folder / f"{unit}.cubin") for unit in units}
        handles = [self._function(modules[k.unit], k.kernel, folder) for k in kernels]
        functions = (ctypes.c_void_p * max(len(handles), 1))(*handles)
        checked = self.options.check_launches
        dependent = self.options.dependent_launch and self.facts.capability >= (9, 0)
        context = DriverContext(
            launch_kernel=self._procedure(b"cuLaunchKernelEx"),
            synchronize=self._procedure(b"cuStreamSynchronize") if checked else None,
            stream=stream,
            functions=ctypes.addressof(functions),
            allowed_flags=_LAUNCH_DEPENDENT if dependent else 0,
            failed_kernel=-1,
        )
        return DriverLauncher(library, context, functions)

    def _procedure(self, name: bytes) -> int:
        address, _ = call(self.driver.cuGetProcAddress, name, _LAUNCH_KERNEL_SINCE, 0)
        if not address:
            raise InfercError(f"NVIDIA's driver has no {name.decode()}; install a newer one.")
        return int(address)

    def _load(self, path: Path) -> Any:
        try:
            module = call(self.driver.cuModuleLoadData, path.read_bytes())
        except OSError as error:
            raise ArtifactError(
                f"{path}: the kernels cannot be read ({error.strerror})."
            ) from error
        except CudaError as error:
            raise ArtifactError(
                f"{path}: {self.facts.label} does not take these kernels ({error.short});"
                " compile the model again for it, or install a newer driver."
            ) from error
        self.modules.append(module)
        return module

    def _function(self, module: Any, name: str, folder: Path) -> int:
        """A kernel that may use all shared memory that a block can have.

        Loaded now: at its first launch might be too late, for that may be captured in a graph.
        """
        driver, kind = self.driver, self.driver.CUfunction_attribute
        try:
            function = call(driver.cuModuleGetFunction, module, name.encode())
        except CudaError as error:
            raise ArtifactError(
                f"{folder}: the kernel {name} is not in its cubin ({error.short}); compile the"
                " model again."
            ) from error
        call(driver.cuFuncLoad, function)
        static = call(driver.cuFuncGetAttribute, kind.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function)
        attribute = kind.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        call(driver.cuFuncSetAttribute, function, attribute, self.most_shared_bytes - int(static))
        return int(function)
