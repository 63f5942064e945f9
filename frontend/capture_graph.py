"""From an exported program to one IR function `@forward`. Runs in the capture process."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Graph, Node
from torch.utils._sympy.functions import Max, Min

from inferc.errors import CompileError
from inferc.frontend import (
    aten_complex,
    aten_contract,
    aten_elementwise,
    aten_hooks,
    aten_recurrent,
    aten_select,
    aten_shape,
    aten_write,
)
from inferc.frontend.aten_table import ATEN, Emitter
from inferc.frontend.known_tables import table_of_positions
from inferc.ir.card import TypeMismatch, card
from inferc.ir.core import Builder, Func, Module, Op, Value
from inferc.ir.dims import Size, Symbol, sym
from inferc.ir.location import ModuleLoc
from inferc.ir.types import TensorType

__all__ = ["Graphed", "Translator", "plain_name", "to_module"]
# Importing these fills the table.
_FAMILIES = (
    aten_contract,
    aten_elementwise,
    aten_hooks,
    aten_recurrent,
    aten_select,
    aten_shape,
    aten_write,
)

_WRAPPER = "model_"  # attribute of the wrapper module that holds the model
_CONSTANT_ELEMENTS_MAX = 4096
_DTYPES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "bool",
    torch.complex64: "f32",  # of each part
}
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_GETITEM = "<built-in function getitem>"
_ASSERTIONS = ("aten._assert", "aten.sym_constrain", "aten._assert_tensor_metadata")


@dataclass(frozen=True)
class Graphed:
    """The captured function and, for each parameter name that is not canonical, the one that is."""

    module: Module
    aliases: dict[str, str]


def to_module(program: ExportedProgram, classes: dict[str, str]) -> Graphed:
    """Translate the program.

    Args:
        program: Functionalised export of the forward pass over ids and positions.
        classes: class name of each module path, for the locations of parameters.
    """
    return Translator(program, classes).run()


def plain_name(target: str) -> str:
    """The name of a parameter or buffer in the model itself."""
    return target.removeprefix(f"{_WRAPPER}.")


class Translator:
    """Walks the graph; subclasses may declare buffers differently."""

    def __init__(self, program: ExportedProgram, classes: dict[str, str]) -> None:
        self.program, self.classes = program, classes
        self.graph: Graph = program.graph
        self.env: dict[Node, Any] = {}
        self.symbols: dict[sympy.Symbol, Size] = {}
        self.func = Func("forward")
        self.aliases: dict[str, str] = {}

    def run(self) -> Graphed:
        """The translated program."""
        _drop_assertions(self.graph)
        self._check_known()
        specs = {s.arg.name: s for s in self.program.graph_signature.input_specs}
        placeholders = [n for n in self.graph.nodes if n.op == "placeholder"]
        inputs = [n for n in placeholders if specs[n.name].kind == InputKind.USER_INPUT]
        self._declare_inputs(inputs)
        self.emitter = Emitter(Builder(self.func), self.func.args[1])
        self._declare_parameters(placeholders, specs)
        for node in placeholders:
            if node not in self.env and node.users:
                self._declare_buffer(node, specs[node.name])
        for node in self.graph.nodes:
            if node.op == "call_function":
                self.env[node] = self._call(node)
        result = next(n for n in self.graph.nodes if n.op == "output").args[0][0]
        self.func.results = [self.env[result]]
        module = Module()
        module.add(self.func)
        return Graphed(module, self.aliases)

    # -- inputs
    def _declare_inputs(self, inputs: list[Node]) -> None:
        ids, positions = inputs
        ranges = self.program.range_constraints
        for name, size in zip("BS", ids.meta["val"].shape, strict=True):
            symbol = size.node.expr
            self.symbols[symbol] = sym(name)
            low, high = int(ranges[symbol].lower), int(ranges[symbol].upper)
            self.func.symbols[name] = Symbol(name, low, high)
        for hint, node in (("ids", ids), ("positions", positions)):
            self.env[node] = self.func.add_arg(hint, self._type(node.meta["val"]))

    def _declare_parameters(self, placeholders: list[Node], specs: dict[str, Any]) -> None:
        """One `param` for each parameter that is used; tied parameters share one."""
        first: dict[int, str] = {}
        made: dict[str, Value] = {}
        for node in placeholders:
            spec = specs[node.name]
            if spec.kind != InputKind.PARAMETER and not (
                spec.kind == InputKind.BUFFER and spec.persistent
            ):
                continue
            name = plain_name(spec.target)
            tensor = self.program.state_dict[spec.target]
            canonical = first.setdefault(id(tensor), name)
            if canonical != name:
                self.aliases[name] = canonical
            if not node.users:
                continue
            if canonical not in made:
                made[canonical] = self._parameter(canonical, self._type(node.meta["val"]))
            self.env[node] = made[canonical]

    def _parameter(self, name: str, type_: TensorType) -> Value:
        path, _, leaf = name.rpartition(".")
        op = Op(
            card("param"),
            (),
            {"name": name},
            loc=ModuleLoc(path or ".", self.classes.get(path, "")),
            hints=(f"{path.rpartition('.')[2]}_{leaf}" if path else leaf,),
            result_types=(type_,),
        )
        self.func.ops.append(op)
        return op.result

    def _declare_buffer(self, node: Node, spec: Any) -> None:
        """A buffer that no checkpoint holds becomes a constant with its exact values."""
        value = self.program.constants[spec.target]
        name = plain_name(spec.target)
        path, _, leaf = name.rpartition(".")
        if value.is_complex():
            raise CompileError(f"the buffer {name} has complex numbers, which are not supported.")
        self.emitter.loc = ModuleLoc(path or ".", self.classes.get(path, ""))
        self.emitter.hint = leaf
        table = table_of_positions(self.emitter, value.numpy()) if value.ndim > 1 else None
        if table is not None:
            self.env[node] = table
            return
        if value.numel() > _CONSTANT_ELEMENTS_MAX:
            raise CompileError(
                f"the buffer {name} has {value.numel()} computed elements; at most "
                f"{_CONSTANT_ELEMENTS_MAX} are supported as constants of the graph."
            )
        type_ = self._type(value)
        self.env[node] = self.emitter.constant(
            tuple(value.flatten().tolist()), tuple(value.shape), type_.dtype
        )

    # -- nodes
    def _check_known(self) -> None:
        unknown: dict[str, Node] = {}
        for node in self.graph.nodes:
            if node.op == "call_function" and not self._is_size(node):
                name = str(node.target)
                if name not in ATEN and name not in aten_complex.COMPLEX and name != _GETITEM:
                    unknown.setdefault(name, node)
        if unknown:
            first, node = next(iter(unknown.items()))
            loc = _location(node)
            others = f" (and {len(unknown) - 1} other operations)" if len(unknown) > 1 else ""
            raise CompileError(
                f"{loc.path} ({loc.cls}, {loc.source}) uses the operation {first}{others}, which "
                "the compiler does not know; this architecture cannot be compiled yet."
            )

    def _is_size(self, node: Node) -> bool:
        return isinstance(node.meta.get("val"), torch.SymInt | int)

    def _call(self, node: Node) -> Any:
        value = node.meta.get("val")
        if self._is_size(node):
            return self._size(value)
        name = str(node.target)
        if name == _GETITEM:
            return self.env[node.args[0]][node.args[1]]
        e, loc = self.emitter, _location(node)
        e.loc, e.hint = loc, _hint(name, loc)
        e.out = self._type(value) if isinstance(value, torch.Tensor) else None
        e.out_shapes = ()
        if isinstance(value, list | tuple):
            e.out_shapes = tuple(self._type(v).shape for v in value)
        args, kwargs = self._arguments(node.args), self._arguments(node.kwargs)
        try:
            if aten_complex.is_complex(name, args):
                return aten_complex.call(e, name, args, kwargs)
            result = ATEN[name](e, *args, **kwargs)
        except (CompileError, TypeMismatch) as error:
            where = f"{loc.path} ({loc.cls}, {loc.source})"
            raise CompileError(
                f"{where} uses {name} in a way that cannot be compiled: {error}"
            ) from error
        if isinstance(result, Value) and result.type != e.out:
            raise CompileError(
                f"internal: {name} at {loc.path} became {result.type}, torch says {e.out}."
            )
        return result

    def _arguments(self, item: Any) -> Any:
        """Nodes by their values, symbolic integers by sizes."""
        if isinstance(item, Node):
            return self.env[item]
        if isinstance(item, tuple | list):
            return [self._arguments(i) for i in item]
        if isinstance(item, dict):
            return {k: self._arguments(v) for k, v in item.items()}
        if isinstance(item, torch.SymInt):
            return self._size(item)
        return item

    # -- types and sizes
    def _type(self, value: torch.Tensor) -> TensorType:
        dtype = _DTYPES.get(value.dtype)
        if dtype is None:
            raise CompileError(f"tensors of type {value.dtype} are not supported.")
        return TensorType(tuple(self._size(s) for s in value.shape), dtype)

    def _size(self, size: int | torch.SymInt) -> Size:
        if isinstance(size, int):
            return size
        return self._expression(size.node.expr)

    def _expression(self, expr: sympy.Expr) -> Size:
        if expr.is_Integer:
            return int(expr)
        if expr in self.symbols:
            return self.symbols[expr]
        if isinstance(expr, Max | Min):
            return self._expression(self._extreme(expr))
        parts = [self._expression(a) for a in expr.args] if expr.is_Add or expr.is_Mul else []
        if not parts:
            raise CompileError(f"the size {expr} is not a polynomial of batch and length.")
        total = parts[0]
        for part in parts[1:]:
            total = total + part if expr.is_Add else total * part
        return total

    def _extreme(self, expr: sympy.Expr) -> sympy.Expr:
        """The largest (or smallest) of several linear sizes, if it is that for all lengths."""
        sign = 1 if isinstance(expr, Max) else -1
        ranges = self.program.range_constraints
        symbols = sorted(expr.free_symbols, key=str)
        ends = product(*((int(ranges[s].lower), int(ranges[s].upper)) for s in symbols))
        corners = [dict(zip(symbols, end, strict=True)) for end in ends]
        linear = all(a.is_Integer or sympy.Poly(a).total_degree() == 1 for a in expr.args)
        for best in expr.args if linear else ():
            least = (sign * (best - a).subs(c) for a in expr.args for c in corners)
            if all(d >= 0 for d in least):
                return best
        raise CompileError(f"the size {expr} is not a polynomial of batch and length.")


def _drop_assertions(graph: Graph) -> None:
    """Checks of dtypes and sizes that export found true; then everything that nothing reads."""
    for node in graph.nodes:  # torch drops readers of a value that two linear layers share
        for operand in node.all_input_nodes:
            operand.users.setdefault(node)
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and str(node.target).startswith(_ASSERTIONS):
            graph.erase_node(node)
    graph.eliminate_dead_code()


def _location(node: Node) -> ModuleLoc:
    """Module path and class of a node, and the line of the modeling file that made it."""
    path, cls = ".", ""
    for entry_path, entry_class in (node.meta.get("nn_module_stack") or {}).values():
        if entry_path == _WRAPPER or entry_path.startswith(f"{_WRAPPER}."):
            path = entry_path.removeprefix(_WRAPPER).lstrip(".") or "."
            cls = entry_class if isinstance(entry_class, str) else entry_class.__name__
    return ModuleLoc(path, cls.rpartition(".")[2], _source(node.meta.get("stack_trace") or ""))


def _source(stack_trace: str) -> str:
    """`transformers/…/modeling_x.py:line` of the innermost frame there, free of machine paths."""
    for file, line in reversed(_FRAME.findall(stack_trace)):
        package, found, rest = file.replace("\\", "/").rpartition("/transformers/")
        if found and package:
            return f"transformers/{rest}:{line}"
    return ""


def _hint(name: str, loc: ModuleLoc) -> str | None:
    """Linear layers and lookups are named after their module; other ops after themselves."""
    if name.startswith(("aten.linear", "aten.addmm", "aten.embedding", "aten.layer_norm")):
        leaf = loc.path.rpartition(".")[2]
        return leaf if leaf.isidentifier() else None
    return None
