"""From the nodes of an ONNX graph to one IR function."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from inferc.errors import CompileError
from inferc.frontend import (
    onnx_attention,
    onnx_contract,
    onnx_elementwise,
    onnx_lookup,
    onnx_microsoft,
    onnx_quantized,
    onnx_recurrent,
    onnx_shape,
)
from inferc.frontend.onnx_proto import OnnxFile
from inferc.frontend.onnx_table import ONNX, Node, OnnxEmitter
from inferc.frontend.onnx_values import Item, Known, Raw
from inferc.frontend.onnx_weights import dtype_of, integers, stored
from inferc.frontend.patterned import patterned
from inferc.frontend.weights import DENSE_DTYPES, StoredTensor
from inferc.ir.card import TypeMismatch
from inferc.ir.core import Func
from inferc.ir.dims import InconclusiveDim
from inferc.ir.location import ModuleLoc

_FAMILIES = (
    onnx_attention, onnx_contract, onnx_elementwise, onnx_lookup, onnx_microsoft, onnx_quantized,
    onnx_recurrent, onnx_shape,
)  # fmt: skip
_KNOWN_ELEMENTS_MAX = 4096  # integers up to here are constants of the graph
_NAME_SCOPES, _CLASSES = "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy"
_DOMAINS = {"ai.onnx": ""}


@dataclass(frozen=True)
class Translated:
    """The function, and the stored tensor of each of its parameters."""

    func: Func
    tensors: dict[str, StoredTensor]


def translate(
    file: OnnxFile, func: Func, inputs: Mapping[str, Item], outputs: Sequence[str]
) -> Translated:
    """Translate what the outputs need.

    Args:
        file: The model.
        func: A function with its arguments, the last of which are the positions.
        inputs: What each input of the graph stands for.
        outputs: Names of the results.
    """
    walker = _Walker(file, OnnxEmitter(func), dict(inputs))
    walker.declare(file.model.graph)
    walker.walk(file.model.graph.node, outputs)
    func.results = [walker.emitter.value(walker.item(name)) for name in outputs]
    _drop_unread(func)
    used = func.params()
    return Translated(func, {k: t for k, t in walker.emitter.tensors.items() if k in used})


class _Walker:
    def __init__(self, file: OnnxFile, emitter: OnnxEmitter, env: dict[str, Item]) -> None:
        self.file, self.emitter, self.env = file, emitter, env
        self.protos: dict[str, onnx.TensorProto] = {}

    def declare(self, graph: onnx.GraphProto) -> None:
        """Note the initialisers; they become values when they are read."""
        if graph.sparse_initializer:
            raise CompileError(f"{self.file.path} has sparse tensors, which are not supported.")
        self.protos |= {t.name: t for t in graph.initializer}

    # -- nodes
    def walk(self, nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> None:
        """Translate, in order, the nodes that the outputs depend on."""
        needed = _needed(nodes, outputs)
        self._check_known(needed)
        for node in needed:
            self._node(node)

    def _check_known(self, nodes: Sequence[onnx.NodeProto]) -> None:
        unknown: dict[str, onnx.NodeProto] = {}
        for node in nodes:
            if _key(node) not in ONNX and node.op_type != "If":
                unknown.setdefault(_shown(node), node)
        if unknown:
            first, node = next(iter(unknown.items()))
            others = ", ".join(list(unknown)[1:])
            raise CompileError(
                f"{self.file.path} uses the operator {first} (node {node.name!r}), which the "
                f"compiler does not know{f'; also {others}' if others else ''}. Only decoder "
                "graphs of known operators can be compiled."
            )

    def _node(self, node: onnx.NodeProto) -> None:
        if node.op_type == "If" and not node.domain:
            self._branch(node)
            return
        e = self.emitter
        e.loc, e.hint = location(node), None
        attrs = {a.name: _attribute(a) for a in node.attribute}
        try:
            view = Node(
                node.op_type, [self.item(i) if i else None for i in node.input], attrs,
                list(node.output), self.file.opset,
            )  # fmt: skip
            made = ONNX[_key(node)](e, view)
        except (CompileError, TypeMismatch, InconclusiveDim) as error:
            raise CompileError(
                f"{self.file.path}: {_shown(node)} (node {node.name!r}) cannot be compiled: {error}"
            ) from error
        results = made if isinstance(made, tuple) else (made,)
        self.env.update((name, r) for name, r in zip(node.output, results, strict=False) if name)

    def _branch(self, node: onnx.NodeProto) -> None:
        """A branch that is known at compile time."""
        attrs = {a.name: a.g for a in node.attribute}
        try:
            taken = self.emitter.number(self.item(node.input[0]), "condition")
        except CompileError as error:
            raise CompileError(
                f"{self.file.path}: If (node {node.name!r}) cannot be compiled: {error}"
            ) from error
        graph = attrs["then_branch" if taken else "else_branch"]
        self.declare(graph)
        names = [o.name for o in graph.output]
        self.walk(graph.node, names)
        self.env.update((o, self.item(i)) for o, i in zip(node.output, names, strict=True))

    # -- values
    def item(self, name: str) -> Item:
        """What a name stands for."""
        if name not in self.env:
            if name not in self.protos:
                raise CompileError(f"{self.file.path} reads {name!r}, which nothing defines.")
            self.env[name] = self._initialiser(self.protos[name])
        return self.env[name]

    def _initialiser(self, proto: onnx.TensorProto) -> Item:
        """A number or a small array of integers is known; any other tensor is a parameter."""
        dtype = dtype_of(proto.data_type, f"Tensor {proto.name} of {self.file.path}")
        elements = int(np.prod(proto.dims, dtype=np.int64))
        is_float = dtype.startswith(("f", "bf"))
        limit = 1 if is_float else _KNOWN_ELEMENTS_MAX
        tensor = stored(self.file, proto)
        if dtype in ("u8", "i8"):
            return Raw(tensor)
        if elements <= limit:
            return _known(proto, tensor, dtype)
        array = _may_be_pattern(tensor)
        found = (
            None if array is None else patterned(self.emitter, array, "f32" if is_float else dtype)
        )
        if found is not None:
            return found
        return self.emitter.parameter(proto.name, tensor) if is_float else Raw(tensor)


def _may_be_pattern(tensor: StoredTensor) -> np.ndarray | None:
    """The values of a table that may be a mask or count: no weight is read for nothing."""
    square = len(tensor.shape) >= 2 and tensor.shape[-1] == tensor.shape[-2]
    if tensor.dtype not in DENSE_DTYPES:
        return integers(tensor)
    if not square:
        return None
    corner = tensor.read().reshape(-1, tensor.shape[-1])[0, 1:]
    return tensor.read() if bool((corner == corner[:1]).all()) else None


def _known(proto: onnx.TensorProto, tensor: StoredTensor, dtype: str) -> Known:
    if proto.data_location == onnx.TensorProto.EXTERNAL:
        is_float = dtype.startswith(("f", "bf"))
        array = tensor.read() if is_float and dtype != "f64" else integers(tensor)
    else:
        array = numpy_helper.to_array(proto)
    if dtype.startswith(("f", "bf")):
        return Known(array.astype(np.float64), "f32")
    return Known(np.asarray(array), dtype)


def _needed(nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> list[onnx.NodeProto]:
    wanted, needed = set(outputs), list[onnx.NodeProto]()
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            needed.append(node)
            wanted.update(node.input)
            for attribute in node.attribute:  # branches read values of the graph around them
                for inner in attribute.g.node:
                    wanted.update(inner.input)
                wanted.update(o.name for o in attribute.g.output)
    return needed[::-1]


def _attribute(attribute: onnx.AttributeProto) -> Any:
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode()
    return list(value) if attribute.type in (onnx.AttributeProto.INTS,
                                             onnx.AttributeProto.FLOATS) else value  # fmt: skip


def _key(node: onnx.NodeProto) -> tuple[str, str]:
    return _DOMAINS.get(node.domain, node.domain), node.op_type


def _shown(node: onnx.NodeProto) -> str:
    domain, kind = _key(node)
    return f"{domain}.{kind}" if domain else kind


def location(node: onnx.NodeProto) -> ModuleLoc:
    """The module that a node comes from: of torch's metadata, else of the node's name."""
    properties = {p.key: p.value for p in node.metadata_props}
    if _NAME_SCOPES in properties:
        try:
            paths = ast.literal_eval(properties[_NAME_SCOPES])
            classes = ast.literal_eval(properties.get(_CLASSES, "[]"))
        except (ValueError, SyntaxError):
            paths, classes = [], []
        if len(paths) > 1:
            cls = str(classes[-2]).rpartition(".")[2] if len(classes) == len(paths) else ""
            return ModuleLoc(str(paths[-2]) or ".", cls)
    parts = [p for p in node.name.split("/") if p][:-1]
    return ModuleLoc(".".join(parts) or node.name or node.op_type)


def _drop_unread(func: Func) -> None:
    """Ops that nothing reads: shapes that were folded, initialisers of stripped nodes."""
    live: set[int] = {id(r) for r in func.results}
    kept = []
    for op in reversed(func.ops):
        if any(id(r) in live for r in op.results):
            live.update(id(v) for v in op.operands)
            kept.append(op)
        else:
            op._set_operands(())
    func.ops = kept[::-1]
