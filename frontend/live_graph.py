"""Translates an exported module; its buffers become constants, patterns, or stored tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.export import ExportedProgram
from torch.fx import Node

from inferc.frontend import aten_attention, capture_graph
from inferc.frontend.computed_tensor import ComputedTensor
from inferc.frontend.patterned import patterned
from inferc.frontend.weights import StoredTensor
from inferc.ir.core import Module
from inferc.ir.location import ModuleLoc

_FAMILIES = (aten_attention,)  # importing it fills the table
_CONSTANT_ELEMENTS_MAX = 4096


@dataclass(frozen=True)
class LiveGraph:
    """The function `@forward`, and the tensor of each parameter."""

    module: Module
    tensors: dict[str, StoredTensor]


def live_graph(
    program: ExportedProgram, classes: dict[str, str], tensors: Mapping[str, ComputedTensor]
) -> LiveGraph:
    """Translate the program."""
    translator = _Translator(program, classes, dict(tensors))
    made = translator.run()
    return LiveGraph(made.module, dict(translator.tensors))


class _Translator(capture_graph.Translator):
    def __init__(
        self, program: ExportedProgram, classes: dict[str, str], tensors: dict[str, ComputedTensor]
    ) -> None:
        super().__init__(program, classes)
        self.tensors = tensors

    def _declare_buffer(self, node: Node, spec: Any) -> None:
        """A large buffer is a pattern, or a table that is stored with the weights."""
        value = self.program.constants.get(spec.target)
        if value is None:
            value = self.program.state_dict[spec.target]
        if value.numel() <= _CONSTANT_ELEMENTS_MAX:
            super()._declare_buffer(node, spec)
            return
        type_, array = self._type(value), value.detach().numpy()
        name = capture_graph.plain_name(spec.target)
        path = name.rpartition(".")[0]
        e = self.emitter
        e.loc, e.hint = ModuleLoc(path or ".", self.classes.get(path, "")), None
        found = patterned(e, array, type_.dtype)
        if found is None:
            if name not in self.tensors:
                self.tensors[name] = ComputedTensor.of_array(name, array)
            found = self._parameter(name, type_)
        self.env[node] = found
