"""A step library that launches kernels. Mirrors `codegen/include/inferc/cuda/step_abi.h`."""

import ctypes
from pathlib import Path

from inferc.errors import InfercError
from inferc.runtime.artifact import CUDA_ABI_VERSION
from inferc.runtime.executors.cuda_device import KernelName, LaunchFailure
from inferc.runtime.executors.step_library import StepArgs, check_abi, open_library, refusal

LAUNCH_FAILED = 7


class LaunchConfig(ctypes.Structure):
    """`inferc_launch_config`."""

    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("threads", ctypes.c_uint32),
        ("shared_bytes", ctypes.c_uint32),
        ("cluster", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
    )


class CudaContext(ctypes.Structure):
    """`inferc_cuda_context`."""

    _fields_ = (
        ("launch", ctypes.c_void_p),
        ("launch_context", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
        ("sm", ctypes.c_int32),
        ("multiprocessors", ctypes.c_int32),
        ("longest_context", ctypes.c_int32),
    )


class SampleArgs(ctypes.Structure):
    """`inferc_sample_args` of `cuda/sampling.h`."""

    _fields_ = (
        ("logits", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
        ("rows", ctypes.c_int32),
        ("columns", ctypes.c_int32),
        ("holes", ctypes.c_void_p),
        ("hole_count", ctypes.c_int32),
        ("top_stride", ctypes.c_int32),
        ("rows_host", ctypes.c_void_p),
        ("parameters", ctypes.c_void_p),
        ("edits", ctypes.c_void_p),
        ("edit_count", ctypes.c_int64),
        ("sampled", ctypes.c_void_p),
        ("top", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
    )


class StepLaunchError(InfercError):
    """A kernel could not be launched."""


class CudaStepLibrary:
    """A loaded step library: what it needs, and its two functions."""

    def __init__(self, path: Path) -> None:
        self.library = library = open_library(path)
        try:
            check_abi(path, int(library.inferc_cuda_abi_version()), (CUDA_ABI_VERSION,))
            for name in (library.inferc_cuda_kernel_name, library.inferc_cuda_unit_name):
                name.restype = ctypes.c_char_p
                name.argtypes = (ctypes.c_int32,)
            library.inferc_cuda_scratch_bytes.restype = ctypes.c_uint64
            for step in (library.inferc_cuda_prefill, library.inferc_cuda_decode):
                step.restype = ctypes.c_int32
                step.argtypes = (ctypes.POINTER(CudaContext), ctypes.POINTER(StepArgs))
            # A library of before has no sampling.
            self.samples = hasattr(library, "inferc_cuda_sample")
            if self.samples:
                library.inferc_cuda_sample.restype = ctypes.c_int32
                library.inferc_cuda_sample_bytes.restype = ctypes.c_uint64
                library.inferc_cuda_sample_bytes.argtypes = (
                    ctypes.c_int32, ctypes.c_int32, ctypes.c_int64,
                )  # fmt: skip
            self.scratch_bytes = int(library.inferc_cuda_scratch_bytes())
            self.kernels = tuple(
                KernelName(
                    library.inferc_cuda_kernel_name(number).decode(),
                    library.inferc_cuda_unit_name(number).decode(),
                )
                for number in range(library.inferc_cuda_kernel_count())
            )
        except AttributeError as error:
            raise InfercError(f"{path}: the step library cannot be loaded ({error}).") from error

    def run(self, context: CudaContext, args: StepArgs, decode: bool) -> None:
        """Launch a step; returns when the last kernel has been launched."""
        step = self.library.inferc_cuda_decode if decode else self.library.inferc_cuda_prefill
        code = step(ctypes.byref(context), ctypes.byref(args))
        if code == LAUNCH_FAILED:
            raise StepLaunchError("A kernel of the step could not be launched.")
        if code != 0:
            raise InfercError(refusal(code, args))

    def sample(self, context: CudaContext, args: SampleArgs) -> None:
        """Launch the choice of tokens."""
        if self.library.inferc_cuda_sample(ctypes.byref(context), ctypes.byref(args)) != 0:
            raise StepLaunchError("A kernel that samples could not be launched.")

    def sample_bytes(self, rows: int, columns: int, edits: int) -> int:
        """Bytes of the workspace of `sample`."""
        return int(self.library.inferc_cuda_sample_bytes(rows, columns, edits))

    def describe(self, failure: LaunchFailure, modules: str) -> str:
        """A sentence on a launch that failed."""
        name = self.kernels[failure.kernel].kernel
        where = f" (of {modules})" if modules else ""
        return f"The kernel {name}{where} could not be launched: {failure.error}."
