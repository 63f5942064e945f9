"""`driver_launch.h`: its structures are those of cuda.h, and it launches what it is told."""

import ctypes
import subprocess
from pathlib import Path

import pytest

from inferc.codegen.cuda_toolchain import find_tool
from inferc.codegen.render import INCLUDE
from inferc.codegen.toolchain import find_compiler
from inferc.runtime.executors.cuda_driver_launch import DriverContext, DriverLauncher
from inferc.runtime.executors.cuda_library import CudaContext, LaunchConfig, SampleArgs
from inferc.runtime.executors.nvtx import LAUNCH
from inferc.runtime.sample_rows import EDIT, ROW, SAMPLED, TOP

SAME = """
#include <cuda.h>
#include "inferc/cuda/driver_launch.h"
#define SAME_FIELD(ours, ourfield, theirs, theirfield) \\
    static_assert(offsetof(ours, ourfield) == offsetof(theirs, theirfield), #ourfield)
static_assert(sizeof(inferc_cu_attribute) == sizeof(CUlaunchAttribute), "attribute");
static_assert(sizeof(inferc_cu_config) == sizeof(CUlaunchConfig), "config");
SAME_FIELD(inferc_cu_attribute, id, CUlaunchAttribute, id);
SAME_FIELD(inferc_cu_attribute, value, CUlaunchAttribute, value);
SAME_FIELD(inferc_cu_attribute, value.cluster, CUlaunchAttribute, value.clusterDim.x);
SAME_FIELD(inferc_cu_attribute, value.enabled, CUlaunchAttribute,
           value.programmaticStreamSerializationAllowed);
SAME_FIELD(inferc_cu_config, grid, CUlaunchConfig, gridDimX);
SAME_FIELD(inferc_cu_config, block, CUlaunchConfig, blockDimX);
SAME_FIELD(inferc_cu_config, shared_bytes, CUlaunchConfig, sharedMemBytes);
SAME_FIELD(inferc_cu_config, stream, CUlaunchConfig, hStream);
SAME_FIELD(inferc_cu_config, attributes, CUlaunchConfig, attrs);
SAME_FIELD(inferc_cu_config, attribute_count, CUlaunchConfig, numAttrs);
static_assert(INFERC_CU_CLUSTER_DIMENSION == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, "");
static_assert(INFERC_CU_PROGRAMMATIC_DEPENDENCE ==
              CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, "");
// The pointers that the runtime hands over are to functions of these types.
CUresult (*const launch)(const CUlaunchConfig *, CUfunction, void **, void **) = cuLaunchKernelEx;
CUresult (*const synchronize)(CUstream) = cuStreamSynchronize;
"""
SIZES = """
#include "inferc/cuda/driver_launch.h"
#include "inferc/cuda/sampling.h"
extern "C" INFERC_EXPORT const uint64_t sizes[] = {
    sizeof(inferc_cuda_driver_context), sizeof(inferc_cuda_context), sizeof(inferc_launch_config),
    sizeof(inferc_sample_args), sizeof(inferc_sample_row), sizeof(inferc_logit_edit),
    sizeof(inferc_sampled), sizeof(inferc_token_logprob)};
"""


class Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int32), ("_", ctypes.c_int32), ("value", ctypes.c_uint32 * 16))


class Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint32),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("attribute_count", ctypes.c_uint32),
    )


@pytest.mark.skipif(find_tool("nvcc") is None, reason="needs the toolkit's cuda.h")
def test_structures_are_those_of_cuda_h(tmp_path: Path) -> None:
    source = tmp_path / "same.cpp"
    source.write_text(SAME)
    command = [str(find_tool("nvcc")), "-std=c++17", "-I", str(INCLUDE), "-c", str(source)]
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "same.o")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("driver_launch")
    (folder / "sizes.cpp").write_text(SIZES)
    command = [*find_compiler().command, "-std=c++17", "-Wall", "-Wextra", "-Werror", "-shared"]
    command += ["-fPIC", "-I", str(INCLUDE), str(folder / "sizes.cpp"), "-o"]
    subprocess.run([*command, str(folder / "sizes.so")], check=True)
    return ctypes.CDLL(str(folder / "sizes.so"))


def test_the_runtime_has_the_same_structures(library: ctypes.CDLL) -> None:
    sizes = (ctypes.c_uint64 * 8).in_dll(library, "sizes")
    ours = [ctypes.sizeof(s) for s in (DriverContext, CudaContext, LaunchConfig, SampleArgs)]
    assert list(sizes) == ours + [t.itemsize for t in (ROW, EDIT, SAMPLED, TOP)]


class Driver:
    """What stands behind the pointers: notes launches, and fails from one on."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.seen: list[tuple[object, ...]] = []
        self.fails_at = fails_at
        self.launch = ctypes.CFUNCTYPE(
            ctypes.c_int32, ctypes.POINTER(Config), ctypes.c_void_p,
            ctypes.POINTER(ctypes.POINTER(ctypes.c_int32)), ctypes.c_void_p,
        )(self.launch_kernel)  # fmt: skip

    def launch_kernel(self, config: object, function: int, arguments: object, extra: None) -> int:
        c = config.contents  # type: ignore[attr-defined]
        attributes = [
            (c.attributes[i].id, *c.attributes[i].value[:3]) for i in range(c.attribute_count)
        ]
        value = arguments[0][0]  # type: ignore[index]
        shape = (tuple(c.grid), tuple(c.block), c.shared_bytes, c.stream)
        self.seen.append((function, value, shape, attributes, extra))
        return 700 + len(self.seen) if self.fails_at == len(self.seen) - 1 else 0


def launcher(library: ctypes.CDLL, driver: Driver, allowed_flags: int) -> DriverLauncher:
    functions = (ctypes.c_void_p * 2)(0x1000, 0x2000)
    context = DriverContext(
        launch_kernel=ctypes.cast(driver.launch, ctypes.c_void_p).value,
        stream=0x30,
        functions=ctypes.addressof(functions),
        allowed_flags=allowed_flags,
        failed_kernel=-1,
    )
    return DriverLauncher(library, context, functions)


def launch(of: DriverLauncher, kernel: int, config: LaunchConfig) -> int:
    value = ctypes.c_int32(42 + kernel)
    function = LAUNCH(of.function)
    return function(of.context, kernel, ctypes.addressof(config), ctypes.addressof(value), 4)


def test_launches(library: ctypes.CDLL) -> None:
    driver = Driver()
    allowed, forbidden = launcher(library, driver, 1), launcher(library, driver, 0)
    config = LaunchConfig((7, 8, 9), 128, 1024, 2, 1)
    assert launch(allowed, 1, config) == launch(forbidden, 0, config) == 0
    plain = LaunchConfig((1, 1, 1), 32, 0, 1, 0)
    assert launch(allowed, 0, plain) == 0
    shape = ((7, 8, 9), (128, 1, 1), 1024, 0x30)
    assert driver.seen[0] == (0x2000, 43, shape, [(4, 2, 1, 1), (6, 1, 0, 0)], None)
    assert driver.seen[1] == (0x1000, 42, shape, [(4, 2, 1, 1)], None)
    assert driver.seen[2] == (0x1000, 42, ((1, 1, 1), (32, 1, 1), 0, 0x30), [], None)
    assert allowed.take_failure() is None


def test_the_first_failure_is_kept(library: ctypes.CDLL) -> None:
    of = launcher(library, Driver(fails_at=1), 0)
    config = LaunchConfig((1, 1, 1), 32, 0, 0, 0)
    assert [launch(of, kernel, config) for kernel in (0, 1, 0)] == [0, 702, 0]
    failure = of.take_failure()
    assert failure is not None and failure.kernel == 1
    # A number, or its name where the bindings are installed.
    assert "702" in failure.error or failure.error == "CUDA_ERROR_LAUNCH_TIMEOUT"
    assert of.take_failure() is None
