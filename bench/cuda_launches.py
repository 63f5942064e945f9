"""What a generated step would launch, without a GPU: its launches are recorded, not made."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from inferc.codegen.cuda_gate import KernelFacts
from inferc.codegen.cuda_occupancy import MULTIPROCESSORS, occupancy
from inferc.codegen.step import StepParams
from inferc.runtime.executors.cuda_library import CudaContext, CudaStepLibrary, LaunchConfig
from inferc.runtime.executors.step_library import StepArgs

_NOWHERE = 1 << 40  # an aligned address that nothing reads
_MOST_BLOCKS = (2**31 - 1, 65535, 65535)  # CUDA Programming Guide, "Technical Specifications"
_MOST_IN_CLUSTER = 8  # what every GPU with clusters can do
_REGISTERS = 65536
LaunchFunction = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32, ctypes.POINTER(LaunchConfig),
    ctypes.c_void_p, ctypes.c_uint64,
)  # fmt: skip


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel (its number), as `inferc_launch_config` has it."""

    kernel: int
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int
    cluster: int
    flags: int

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]


@dataclass(frozen=True)
class Workload:
    """A step: `sequences` of so many new tokens each, which then have `context_tokens`."""

    name: str
    sequences: int
    new_tokens: int
    context_tokens: int

    @property
    def is_decode(self) -> bool:
        """Whether each sequence has one new token."""
        return self.new_tokens == 1


@dataclass(frozen=True)
class Gpu:
    """What launches may depend on."""

    arch: str
    sm: int
    multiprocessors: int


class Recorder:
    """A launch function that notes what it is asked for."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self._function = LaunchFunction(self._record)

    @property
    def address(self) -> int:
        """Of the function; valid while this lives."""
        return ctypes.cast(self._function, ctypes.c_void_p).value or 0

    def _record(
        self, context: int, kernel: int, config: ctypes.Array[LaunchConfig], args: int, nbytes: int
    ) -> int:
        del context, args, nbytes
        c = config[0]
        self.launches.append(
            Launch(
                kernel, (c.grid[0], c.grid[1], c.grid[2]), c.threads, c.shared_bytes,
                max(1, c.cluster), c.flags,
            )
        )  # fmt: skip
        return 0


def record(
    library: CudaStepLibrary, step: StepParams, workload: Workload, gpu: Gpu
) -> list[Launch]:
    """The launches of one step on a GPU. Nothing is computed: no pointer leads anywhere."""
    recorder = Recorder()
    context = CudaContext(
        recorder.address, 0, _NOWHERE, gpu.sm, gpu.multiprocessors, workload.context_tokens
    )
    names = (
        "ids", "positions", "slots", "sequence_starts", "context_lengths", "block_tables",
        "logit_indices", "arena", "logits", "state_slots",
    )  # fmt: skip
    args = StepArgs(
        tokens=workload.sequences * workload.new_tokens, sequences=workload.sequences,
        logit_rows=workload.sequences, table_stride=step.table_pages,
        **dict.fromkeys(names, _NOWHERE),
    )  # fmt: skip
    tables = {"weights": step.weights, "caches": 2 * step.caches, "states": step.states}
    arrays = {name: _pointers(count) for name, count in tables.items()}
    for name, array in arrays.items():
        setattr(args, name, ctypes.addressof(array))
    library.run(context, args, workload.is_decode)
    return recorder.launches


def _pointers(count: int) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * max(count, 1))(*[_NOWHERE] * max(count, 1))


def launch_faults(launch: Launch, facts: KernelFacts) -> list[str]:
    """Why the driver would refuse a launch on the architecture of `facts`."""
    kernel, arch, limits = facts.resources, facts.arch, MULTIPROCESSORS[facts.arch]
    shared = kernel.shared_bytes + launch.shared_bytes
    checks = {
        f"{launch.threads} threads, of at most {kernel.threads} that it is bound to":
            launch.threads <= (kernel.threads or 1024),
        f"{launch.threads} threads of {kernel.registers} registers":
            launch.threads * kernel.registers <= _REGISTERS,
        f"{shared} bytes of shared memory, of at most {limits.block_shared_bytes}":
            shared <= limits.block_shared_bytes,
        f"a grid of {launch.grid}":
            all(0 < n <= most for n, most in zip(launch.grid, _MOST_BLOCKS, strict=True)),
        f"clusters of {launch.cluster} in a grid of {launch.grid}":
            launch.cluster <= _MOST_IN_CLUSTER and launch.grid[0] % launch.cluster == 0,
    }  # fmt: skip
    return [f"{kernel.name} on {arch}: {what}" for what, holds in checks.items() if not holds]


def fill(launch: Launch, facts: KernelFacts, gpu: Gpu) -> dict[str, float | int | str]:
    """How a launch fills a GPU; in dynamic shared memory lies what is being copied, above all."""
    kernel = facts.resources
    found = occupancy(
        facts.arch, launch.threads, kernel.registers, kernel.shared_bytes + launch.shared_bytes
    )
    resident = min(found.blocks, -(-launch.blocks // gpu.multiprocessors))
    return {
        "blocks_per_multiprocessor": found.blocks,
        "occupancy": round(found.share, 3),
        "limit": found.limit,
        "waves": round(launch.blocks / max(1, found.blocks * gpu.multiprocessors), 2),
        "resident_dynamic_shared_bytes": resident * launch.shared_bytes,
    }
