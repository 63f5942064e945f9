"""A device of host memory, whose kernels are functions of the step library (emulated).

As asynchronous as a GPU: copies and launches wait in a stream until somebody waits for them, so
that what is overwritten, read or freed too early shows. Memory is poisoned and lies between guards.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from inferc.runtime.executors.cuda_device import (
    DeviceFacts,
    KernelName,
    LaunchFailure,
    OutOfDeviceMemory,
)
from inferc.runtime.executors.cuda_library import LaunchConfig
from inferc.runtime.executors.nvtx import LAUNCH

GUARD = 256
POISON = 0xA5
DEPENDENT = 1  # INFERC_LAUNCH_DEPENDENT
Work = Callable[[], None]


@dataclass(frozen=True)
class Written:
    """Memory that a launch changed."""

    address: int
    before: np.ndarray
    after: np.ndarray

    @property
    def region(self) -> tuple[int, int, int]:
        """As `inferc_emulation_withhold` takes it."""
        return self.address, self.after.ctypes.data, self.after.nbytes


@dataclass(eq=False)
class EmulatedGraph:
    launches: list[Work]
    discarded: bool = False


@dataclass(eq=False)
class EmulatedLauncher:
    function: int
    context: int
    callback: Any
    failures: list[LaunchFailure] = field(default_factory=list)

    def take_failure(self) -> LaunchFailure | None:
        return self.failures.pop() if self.failures else None


class EmulatedDevice:
    """`kernels`: the emulated library, if it is not the step library itself.

    `overlaps`: a kernel that may begin before the one ahead has ended does: it finds the memory as
    it was before that one, until it waits.
    """

    def __init__(
        self,
        capability: tuple[int, int] = (8, 0),
        total_bytes: int = 2**30,
        kernels: ctypes.CDLL | None = None,
        overlaps: bool = False,
    ) -> None:
        self.kernels = kernels
        self.overlaps = overlaps
        self.ahead: list[Written] = []
        self.withheld = 0
        self.facts = DeviceFacts("cuda:0 (emulated)", capability, 4, 13000)
        self.total_bytes = total_bytes
        self.stream: list[Work] = []
        self.done = 0
        self.memory: dict[int, np.ndarray] = {}
        self.host: dict[int, np.ndarray] = {}
        self.capturing: list[Work] | None = None
        self.launches: list[str] = []
        self.configs: list[tuple[str, tuple[int, ...]]] = []
        self.failing: str | None = None
        self.closed = False
        self.copies: list[int] = []

    def attach(self) -> None:
        assert not self.closed

    def free_bytes(self) -> int:
        return self.total_bytes - sum(len(m) - 2 * GUARD for m in self.memory.values())

    def allocate(self, nbytes: int, what: str) -> int:
        if nbytes > self.free_bytes():
            raise OutOfDeviceMemory(f"{nbytes} bytes for {what} do not fit.")
        whole = np.full(nbytes + 2 * GUARD + 255, POISON, np.uint8)
        start = -whole.ctypes.data % 256
        memory = whole[start : start + nbytes + 2 * GUARD]
        address = memory.ctypes.data + GUARD
        self.memory[address] = memory
        return address

    def pinned(self, nbytes: int, what: str) -> np.ndarray:
        memory = np.full(max(nbytes, 1), POISON, np.uint8)
        self.host[memory.ctypes.data] = memory
        return memory

    def free(self, address: int) -> None:
        assert not self.stream
        self._check_guards()
        del self.memory[address]

    def unpin(self, memory: np.ndarray) -> None:
        assert not self.stream
        del self.host[memory.ctypes.data]

    def zero(self, address: int, nbytes: int) -> None:
        self._inside(address, nbytes)
        self.stream.append(lambda: ctypes.memset(address, 0, nbytes))

    def upload(self, address: int, source: np.ndarray) -> None:
        self._copy(address, source.ctypes.data, source, address)

    def download(self, target: np.ndarray, address: int) -> None:
        self._copy(target.ctypes.data, address, target, address)

    def _copy(self, to: int, source: int, host: np.ndarray, address: int) -> None:
        nbytes = host.nbytes
        self._inside(address, nbytes)
        assert any(
            start <= host.ctypes.data and host.ctypes.data + nbytes <= start + len(memory)
            for start, memory in self.host.items()
        ), "a copy with memory that is not pinned"
        self.copies.append(nbytes)
        self.stream.append(lambda: ctypes.memmove(to, source, nbytes))

    def _inside(self, address: int, nbytes: int) -> None:
        assert any(
            start <= address and address + nbytes <= start + len(memory) - 2 * GUARD
            for start, memory in self.memory.items()
        ), "outside all memory of the device"

    def mark(self) -> int:
        return self.done + len(self.stream)

    def wait(self, mark: int) -> None:
        while self.done < mark:
            self._step()

    def synchronize(self) -> None:
        while self.stream:
            self._step()
        self._check_guards()

    def _step(self) -> None:
        self.done += 1
        ahead = self.ahead
        self.stream.pop(0)()
        if self.ahead is ahead:  # no launch: what follows a copy waits for it
            self.ahead = []

    @contextmanager
    def _overlap(self, library: ctypes.CDLL, dependent: bool) -> Iterator[None]:
        """Around a launch: withholds what the one ahead wrote, and notes what this one writes."""
        if not self.overlaps:
            yield
            return
        before = {address: memory.copy() for address, memory in self.memory.items()}
        ahead = self.ahead if dependent else []
        regions = (ctypes.c_uint64 * (3 * len(ahead)))(*(n for w in ahead for n in w.region))
        for written in ahead:
            ctypes.memmove(written.address, written.before.ctypes.data, written.before.nbytes)
        self.withheld += len(ahead)
        library.inferc_emulation_withhold(regions, len(ahead))
        yield
        self.ahead = []
        for address, old in before.items():
            changed = np.flatnonzero(old != self.memory[address])
            if len(changed):
                start, end = int(changed[0]), int(changed[-1]) + 1
                to = address - GUARD + start
                after = self.memory[address][start:end].copy()
                self.ahead.append(Written(to, old[start:end].copy(), after))

    def _check_guards(self) -> None:
        for memory in self.memory.values():
            assert (memory[:GUARD] == POISON).all() and (memory[-GUARD:] == POISON).all()

    def copy_bandwidth(self) -> float:
        return 1e9

    def timestamp(self) -> int:
        """Time is counted in what has been put into the stream."""
        return self.mark()

    def milliseconds(self, start: int, end: int) -> float:
        self.wait(end)
        return float(end - start)

    def keep_busy(self) -> None:
        self.stream.append(lambda: None)

    def launcher(
        self, library: ctypes.CDLL, kernels: Sequence[KernelName], folder: Path
    ) -> EmulatedLauncher:
        library = self.kernels or library
        library.inferc_emulation_launch.restype = ctypes.c_void_p
        library.inferc_emulated_kernels.restype = ctypes.c_void_p
        run = LAUNCH(library.inferc_emulation_launch())
        table = library.inferc_emulated_kernels()

        def launch(context: int, number: int, config: int, args: int, nbytes: int) -> int:
            name = kernels[number].kernel
            if name == self.failing:
                launcher.failures.append(LaunchFailure(number, "CUDA_ERROR_INVALID_VALUE, planted"))
                return 1
            config_copy = LaunchConfig.from_buffer_copy(ctypes.string_at(config, 28))
            args_copy = ctypes.create_string_buffer(ctypes.string_at(args, nbytes), nbytes)

            def work() -> None:
                self.launches.append(name)
                with self._overlap(library, bool(config_copy.flags & DEPENDENT)):
                    code = run(
                        table,
                        number,
                        ctypes.addressof(config_copy),
                        ctypes.addressof(args_copy),
                        nbytes,
                    )
                assert code == 0, (name, code, _message(library))

            (self.stream if self.capturing is None else self.capturing).append(work)
            self.configs.append((name, tuple(config_copy.grid)))
            return 0

        callback = LAUNCH(launch)
        address = ctypes.cast(callback, ctypes.c_void_p).value
        assert address is not None
        launcher = EmulatedLauncher(address, 0, callback)
        return launcher

    def capture(self, work: Work) -> EmulatedGraph:
        self.capturing = launches = []
        try:
            work()
        finally:
            self.capturing = None
        return EmulatedGraph(launches)

    def replay(self, graph: EmulatedGraph) -> None:
        assert not graph.discarded
        self.stream += graph.launches

    def discard(self, graph: EmulatedGraph) -> None:
        graph.discarded = True

    def close(self) -> None:
        if not self.closed:
            self.synchronize()
        self.closed = True


def _message(library: ctypes.CDLL) -> str:
    """What the emulator says of its last launch."""
    if not hasattr(library, "inferc_emulation_error"):
        return ""
    library.inferc_emulation_error.restype = ctypes.c_char_p
    return (library.inferc_emulation_error() or b"").decode()
