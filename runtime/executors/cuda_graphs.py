"""Captured decode steps, the least recently used forgotten first."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from inferc.runtime.executors.cuda_device import Device
from inferc.runtime.executors.cuda_inputs import StepSize

MOST_GRAPHS = 96
"""A graph of some hundred kernels takes about a megabyte on the device."""


class Graphs:
    """One graph for each size of a decode step."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._graphs: OrderedDict[StepSize, Any] = OrderedDict()
        self.captured = 0
        self.replayed = 0

    def run(self, size: StepSize, launch: Callable[[], None]) -> None:
        """Replay the graph of a size; at its first use it is captured from `launch`."""
        graph = self._graphs.get(size)
        if graph is None:
            graph = self._device.capture(launch)
            self.captured += 1
            self._graphs[size] = graph
            if len(self._graphs) > MOST_GRAPHS:
                self._device.discard(self._graphs.popitem(last=False)[1])
        self._graphs.move_to_end(size)
        self._device.replay(graph)
        self.replayed += 1

    def clear(self) -> None:
        """Forget all graphs."""
        while self._graphs:
            self._device.discard(self._graphs.popitem()[1])
