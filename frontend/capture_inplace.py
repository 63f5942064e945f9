"""In-place ops of an exported graph made functional where that is plain to see.

torch can functionalise any graph, but by tracing it once more, which takes as long as the export
itself. Most models write in place only to a tensor that an op has just made and nobody else sees:

    weights = topk(..)[0];  weights /= sum    ->   div(weights, sum)
    k = new_empty(..);  k[..., :64] = a       ->   slice_scatter(k, a, ..)

Whatever is not of this kind stays for torch. Runs in the capture process.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node

_COPY = torch.ops.aten.copy_.default
_SLICE = torch.ops.aten.slice.Tensor
# Ops whose results never share memory with an operand: a schema alone does not say so for all.
_OWN_MEMORY = frozenset(
    """
    add sub mul div neg exp rsqrt sigmoid softmax log_softmax relu sum mean cumsum topk gather
    scatter scatter_add slice_scatter masked_fill where clone linear matmul bmm embedding new_empty
    new_zeros new_full empty empty_like zeros zeros_like ones ones_like full full_like arange eq ne
    lt le gt ge logical_and logical_not one_hot
    """.split()
)


def make_functional(program: ExportedProgram) -> bool:
    """Replace in-place ops in the graph; returns whether none is left."""
    graph = program.graph
    order = {node: i for i, node in enumerate(graph.nodes)}
    done = True
    for node in list(graph.nodes):
        if is_inplace(node) and not _replace(graph, node, order):
            done = False
    program.graph_module.recompile()
    return done


def is_inplace(node: Node) -> bool:
    """Whether a node changes an operand."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _replace(graph: Graph, node: Node, order: dict[Node, int]) -> bool:
    call = _slice_write(node) or _plain_write(node)
    if call is None:
        return False
    target, args, kwargs, written = call
    if not _unshared(written, node, order):
        return False
    with graph.inserting_before(node):
        made = graph.call_function(target, args, kwargs)
    made.meta = {**node.meta, "val": written.meta["val"]}
    order[made] = order[node]
    for user in list(written.users):
        if order[user] > order[node]:
            user.replace_input_with(written, made)
    node.replace_all_uses_with(made)
    graph.erase_node(node)
    return True


_Call = tuple[Any, tuple[Any, ...], dict[str, Any], Node]  # op, operands; the tensor it stands for


def _plain_write(node: Node) -> _Call | None:
    """`x.op_(..)` as `op(x, ..)`, where that has the type of x."""
    written, name = node.args[0], node.target._schema.name  # type: ignore[union-attr]
    packet = getattr(torch.ops.aten, name.removeprefix("aten::").removesuffix("_"), None)
    overload = node.target._overloadname  # type: ignore[union-attr]
    if not isinstance(written, Node) or not name.endswith("_") or packet is None:
        return None
    if overload not in packet.overloads():
        return None
    target = getattr(packet, overload)
    if target._schema.is_mutable or not _same_type(target, node, written):
        return None
    return target, node.args, dict(node.kwargs), written


def _same_type(target: Any, node: Node, written: Node) -> bool:
    """Whether the functional op has the shape and type of the tensor: promotion could widen it."""
    value = written.meta["val"]
    args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: n.meta["val"])
    with value.fake_mode:
        result = target(*args, **kwargs)
    return _type(result) == _type(value)


def _slice_write(node: Node) -> _Call | None:
    """`x[.., a:b] = y` as `slice_scatter(x, y, ..)`; only this write may read the slice."""
    if node.target is not _COPY or len(node.args) != 2 or node.users:
        return None
    part, source = node.args
    if not isinstance(part, Node) or not isinstance(source, Node) or part.target is not _SLICE:
        return None
    written = part.args[0]
    if set(part.users) != {node} or not isinstance(written, Node):
        return None
    if _type(part.meta["val"]) != _type(source.meta["val"]):
        return None
    operands = (written, source, *part.args[1:])
    return torch.ops.aten.slice_scatter.default, operands, {}, written


def _unshared(written: Node, node: Node, order: dict[Node, int]) -> bool:
    """Whether nothing but the node itself can see the memory that a write changes."""
    maker = written.args[0] if written.target is operator.getitem else written
    if not isinstance(maker, Node) or not _has_own_memory(maker):
        return False
    earlier = [u for u in written.users if order[u] < order[node]]
    return all(_has_own_memory(u) or _only_slices(u, node) for u in earlier)


def _only_slices(user: Node, node: Node) -> bool:
    """Whether a reader is the slice that the node writes to."""
    return user.target is _SLICE and set(user.users) == {node}


def _has_own_memory(node: Node) -> bool:
    name = getattr(getattr(node.target, "_schema", None), "name", "")
    return name.removeprefix("aten::") in _OWN_MEMORY


def _type(value: torch.Tensor) -> tuple[str, torch.dtype]:
    return str(tuple(value.shape)), value.dtype
