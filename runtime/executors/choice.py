"""The executor of a device."""

from pathlib import Path

from inferc.runtime.artifact import Manifest
from inferc.runtime.executors.base import Executor
from inferc.runtime.host import default_threads
from inferc.runtime.kv_budget import device_kv_budget, kv_budget
from inferc.runtime.pool_choice import DEFAULT_POOL, PoolChoice
from inferc.runtime.target_choice import DeviceName


def open_executor(
    folder: Path,
    manifest: Manifest,
    device: DeviceName,
    threads: int | None,
    kv_budget_bytes: int | None,
    choice: PoolChoice = DEFAULT_POOL,
) -> Executor:
    """Load the artifact of a folder for a device. Raises InfercError if it does not run there."""
    if device.kind == "cuda":
        return _open_cuda(folder, manifest, device.index, kv_budget_bytes)
    from inferc.runtime.executors.cpu import CpuExecutor

    budget = kv_budget(manifest.kv, manifest.limits, kv_budget_bytes)
    return CpuExecutor(folder, manifest, budget, threads or default_threads(), choice)


def _open_cuda(
    folder: Path, manifest: Manifest, index: int, kv_budget_bytes: int | None
) -> Executor:
    from inferc.runtime.executors.cuda import CudaExecutor
    from inferc.runtime.executors.cuda_driver import CudaDriver
    from inferc.runtime.executors.cuda_options import from_environment

    options = from_environment()
    device = CudaDriver(index, options)
    try:
        return CudaExecutor(
            folder,
            manifest,
            device,
            lambda room: device_kv_budget(manifest.kv, manifest.limits, kv_budget_bytes, room),
            options,
        )
    except BaseException:
        device.close()
        raise
