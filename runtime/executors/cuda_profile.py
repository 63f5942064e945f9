"""How long each launch of a step takes on the device, and which call of the step it belongs to."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inferc.runtime.executors.cuda_device import Device, KernelName, Launcher
from inferc.runtime.executors.nvtx import LAUNCH, CallCursor, ReportedCall


@dataclass(frozen=True)
class LaunchTime:
    """One launch: its kernel, the number of its call in the report's list (None: not in it)."""

    kernel: str
    call: int | None
    milliseconds: float


class TimingLauncher:
    """A launcher that puts a timestamp before and behind each launch."""

    def __init__(
        self,
        device: Device,
        inner: Launcher,
        kernels: Sequence[KernelName],
        calls: Sequence[ReportedCall],
    ) -> None:
        self._device, self._kernels = device, kernels
        self._context = inner.context
        self._cursor = CallCursor(calls)
        self._launch = LAUNCH(inner.function)
        self._timed = LAUNCH(self._run)
        self._spans: list[tuple[str, int | None, Any, Any]] = []

    @property
    def function(self) -> int:
        """Address of the timing function; its context is that of the launcher inside."""
        return ctypes.cast(self._timed, ctypes.c_void_p).value or 0

    def times(self) -> tuple[LaunchTime, ...]:
        """All launches so far, in order; waits for them."""
        return tuple(
            LaunchTime(kernel, call, self._device.milliseconds(start, end))
            for kernel, call, start, end in self._spans
        )

    def _run(self, context: int, number: int, config: Any, args: Any, args_bytes: int) -> int:
        kernel = self._kernels[number]
        start = self._device.timestamp()
        code = int(self._launch(context, number, config, args, args_bytes))
        call = self._cursor.follow(kernel)
        self._spans.append((kernel.kernel, call, start, self._device.timestamp()))
        return code
