"""NVTX ranges, for Nsight Systems; without them nothing is imported and nothing is done."""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferc import report_file
from inferc.errors import ArtifactError, InfercError
from inferc.runtime.executors.cuda_device import KernelName, Launcher, LaunchFailure

Range = Callable[[str], AbstractContextManager[object]]
LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p,
    ctypes.c_uint64,
)  # fmt: skip
"""`inferc_launch` of step_abi.h."""


def ranges(wanted: bool) -> Range:
    """A function that marks what runs within it by a name."""
    if not wanted:
        return _nothing
    try:
        import nvtx
    except ImportError as error:
        raise InfercError(f"NVTX ranges need a package ({error}): pip install nvtx") from error
    return lambda name: nvtx.annotate(name, domain="inferc")


def _nothing(name: str) -> AbstractContextManager[object]:
    del name
    return nullcontext()


@dataclass(frozen=True)
class ReportedCall:
    """A call of a kernel file in a step, and the modules that it computes."""

    unit: str
    modules: tuple[str, ...]

    @property
    def label(self) -> str:
        """The modules, the first few by name."""
        return ", ".join((*self.modules[:3], "…") if len(self.modules) > 3 else self.modules)


def reported_calls(folder: Path) -> Mapping[str, tuple[ReportedCall, ...]]:
    """Calls of each phase in order, by the artifact's report; empty if it has none."""
    try:
        phases = report_file.read(folder)["phases"]
        return {
            phase: tuple(ReportedCall(k["name"], tuple(k["modules"])) for k in entry["kernels"])
            for phase, entry in phases.items()
        }
    except (OSError, ArtifactError, KeyError, TypeError, AttributeError):
        return {}


def modules_of_unit(folder: Path, unit: str) -> str:
    """Modules of all calls of a kernel file."""
    calls = [call for calls in reported_calls(folder).values() for call in calls]
    paths = dict.fromkeys(path for call in calls if call.unit == unit for path in call.modules)
    return ReportedCall(unit, tuple(paths)).label


class MarkedLauncher:
    """A launcher that marks each launch by its kernel and the modules of its call."""

    def __init__(
        self, inner: Launcher, kernels: Sequence[KernelName], folder: Path, mark: Range
    ) -> None:
        self._inner = inner
        self._kernels = kernels
        self._calls = reported_calls(folder)
        self._mark = mark
        self._cursor = CallCursor(())
        self._launch = LAUNCH(inner.function)
        self._marked = LAUNCH(self._run)

    @property
    def function(self) -> int:
        """Address of the marking function."""
        return ctypes.cast(self._marked, ctypes.c_void_p).value or 0

    @property
    def context(self) -> int:
        """Address of the inner context."""
        return self._inner.context

    def take_failure(self) -> LaunchFailure | None:
        """What went wrong since the last call."""
        return self._inner.take_failure()

    def begin(self, phase: str) -> None:
        """A step begins."""
        self._cursor = CallCursor(self._calls.get(phase, ()))

    def _run(self, context: int, number: int, config: Any, args: Any, args_bytes: int) -> int:
        kernel = self._kernels[number]
        with self._mark(f"{kernel.kernel}: {self._cursor.label(kernel)}"):
            return int(self._launch(context, number, config, args, args_bytes))


class CallCursor:
    """Follows the launches of a step through its calls: each launches a kernel at most once."""

    def __init__(self, calls: Sequence[ReportedCall]) -> None:
        self._calls = calls
        self._current: int | None = None
        self._launched: set[str] = set()

    def follow(self, kernel: KernelName) -> int | None:
        """Number of the call that launches a kernel, which is the next launch; None if unknown."""
        current = self._current
        same = current is not None and self._calls[current].unit == kernel.unit
        if not same or kernel.kernel in self._launched:
            first = 0 if current is None else current + 1
            rest = range(first, len(self._calls))
            current = next((i for i in rest if self._calls[i].unit == kernel.unit), None)
            if current is None:
                return None
            self._current, self._launched = current, set()
        self._launched.add(kernel.kernel)
        return current

    def label(self, kernel: KernelName) -> str:
        """Modules of that call; "?" if unknown."""
        call = self.follow(kernel)
        return "?" if call is None else self._calls[call].label
