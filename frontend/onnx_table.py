"""The table from ONNX operators to IR builders, and what a builder is given.

One file a family fills the table. A builder gets the emitter and the node, whose inputs are items
(see `onnx_values`), and returns one item a result. Operators that are not in the table are refused
by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from inferc.errors import CompileError
from inferc.frontend.aten_table import Emitter, tensor
from inferc.frontend.onnx_values import Filled, Item, Known, Raw, Unsaid, np_dtype
from inferc.frontend.weights import StoredTensor
from inferc.ir.card import AttrValue
from inferc.ir.core import Builder, Func, Value
from inferc.ir.dims import Dim, Size, known_eq, known_le, product
from inferc.ir.location import ModuleLoc
from inferc.ir.types import TensorType

MICROSOFT = "com.microsoft"
Results = Item | tuple[Item, ...]
OnnxBuilder = Callable[["OnnxEmitter", "Node"], Results]
ONNX: dict[tuple[str, str], OnnxBuilder] = {}


def onnx_op(*names: str, domain: str = "") -> Callable[[OnnxBuilder], OnnxBuilder]:
    """Declare the builder of one or more operators of a domain."""

    def declare(builder: OnnxBuilder) -> OnnxBuilder:
        for name in names:
            if (domain, name) in ONNX:
                raise ValueError(f"{domain}.{name} has two builders")
            ONNX[domain, name] = builder
        return builder

    return declare


@dataclass(frozen=True)
class Node:
    """One node: its items and attributes.

    Attributes:
        kind: Operator name.
        inputs: Items; None where an optional input is left out.
        attrs: Attributes that are set, as Python values.
        outputs: Names of the results; empty for those left out.
        opset: Version of the default operator set.
    """

    kind: str
    inputs: Sequence[Item | None]
    attrs: dict[str, Any]
    outputs: Sequence[str]
    opset: int

    def input(self, index: int) -> Item:
        """An input that must be there."""
        item = self.optional(index)
        if item is None:
            raise CompileError(f"its input {index} is missing.")
        return item

    def optional(self, index: int) -> Item | None:
        """An input, or None."""
        return self.inputs[index] if index < len(self.inputs) else None

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute, or the default."""
        return self.attrs.get(name, default)

    def wants(self, index: int) -> bool:
        """Whether an optional output is used."""
        return index < len(self.outputs) and bool(self.outputs[index])

    def only(self, **allowed: Any) -> None:
        """Refuse attributes that have another value than these."""
        for name, value in allowed.items():
            found = self.attrs.get(name, value)
            if found != value:
                raise CompileError(f"{name} = {found} is not supported (only {value}).")


class OnnxEmitter(Emitter):
    """Appends ops, and turns items into what a builder needs."""

    def __init__(self, func: Func) -> None:
        super().__init__(Builder(func), func.args[-1])
        self.func = func
        self.tensors: dict[str, StoredTensor] = {}
        self._names: dict[str, str] = {}
        self._params: dict[str, Value] = {}
        self._weights: dict[Value, bool] = {}
        self._constants: dict[tuple[Any, ...], Value] = {}

    # -- items to values
    def value(self, item: Any, dtype: str | None = None) -> Value:
        """The item as a tensor of the graph, cast if a dtype is given."""
        if isinstance(item, Value):
            return item if dtype is None else self.cast(item, dtype)
        if isinstance(item, Filled):
            return self._filled(item, dtype or item.dtype)
        if isinstance(item, Known):
            return self._known(item, dtype or item.dtype)
        if isinstance(item, Unsaid):
            raise CompileError(item.reason)
        if isinstance(item, Raw):
            tensor = item.tensor
            raise CompileError(
                f"tensor {tensor.name} holds {tensor.dtype} values of shape {list(tensor.shape)}, "
                "which are no weights and too many for a constant."
            )
        raise CompileError(f"{item!r} is no tensor.")

    def _filled(self, item: Filled, dtype: str) -> Value:
        if isinstance(item.value, Dim):
            raise CompileError(f"the size {item.value} is used as data.")
        return self.broadcast(self.scalar(item.value, dtype), item.shape)

    def _known(self, item: Known, dtype: str) -> Value:
        if not item.is_numeric:
            sizes = ", ".join(str(v) for v in item.elements())
            raise CompileError(f"the sizes ({sizes}) are used as data.")
        array = item.array.astype(np_dtype(dtype))
        values = tuple(array.ravel().tolist())
        if not array.shape:
            return self.scalar(values[0], dtype)
        key = (values, array.shape, dtype)
        if key not in self._constants:
            self._constants[key] = self.constant(values, array.shape, dtype)
        return self._constants[key]

    # -- parameters
    def parameter(self, name: str, tensor: StoredTensor) -> Value:
        """The parameter that a stored tensor is, in f32; its stored type is put under it later."""
        if name in self._params:
            return self._params[name]
        safe = self._safe(name)
        path, _, leaf = safe.rpartition(".")
        type_ = TensorType(tensor.shape, "f32")
        loc = ModuleLoc(path) if path else self.loc  # a name without path: where it is first read
        value = self.builder.param(safe, type_, loc=loc)
        value.hint = re.sub(r"\W", "_", f"{path.rpartition('.')[2]}_{leaf}" if path else leaf)
        self.tensors[safe] = tensor
        self._params[name] = value
        return value

    def _safe(self, name: str) -> str:
        """A name that the text form can hold, different for each tensor."""
        safe = re.sub(r"[^\w./-]", "_", name).strip("/") or "tensor"
        while self._names.setdefault(safe, name) != name:
            safe += "_"
        return safe

    def stored(self, item: Item, what: str) -> StoredTensor:
        """The stored tensor that an item is. Raises CompileError where it is computed."""
        if isinstance(item, Raw):
            return item.tensor
        op = item.producer if isinstance(item, Value) else None
        if op is None or op.name != "param":
            raise CompileError(f"its {what} are no stored tensor.")
        return self.tensors[str(op.attrs["name"])]

    # -- items to compile-time facts
    def sizes(self, item: Item | None, what: str) -> list[Size]:
        """The elements of an item that holds sizes. Raises CompileError where it is computed."""
        if isinstance(item, Filled) and all(isinstance(s, int) for s in item.shape):
            count = product(item.shape)
            assert isinstance(count, int)
            elements: list[Any] = [item.value] * count
        elif isinstance(item, Known):
            elements = item.elements()
        else:
            raise CompileError(f"its {what} is computed from data.")
        return [int(v) if isinstance(v, float | bool) else v for v in elements]

    def sizes_in(self, item: Item, what: str) -> list[Size]:
        """The different sizes among the elements of a known item of any shape."""
        if isinstance(item, Filled):
            return self.sizes(Filled(item.value, (1,), item.dtype), what)
        return self.sizes(item, what)

    def ints(self, item: Item | None, what: str) -> list[int]:
        """Like `sizes`, but none may be symbolic."""
        sizes = self.sizes(item, what)
        if any(isinstance(s, Dim) for s in sizes):
            raise CompileError(f"its {what} {sizes} depends on the batch or the length.")
        return [s for s in sizes if isinstance(s, int)]

    def number(self, item: Item | None, what: str) -> float:
        """The item as one number."""
        if isinstance(item, Known) and item.array.size == 1 and item.is_numeric:
            return float(item.array.item())
        if isinstance(item, Filled) and not isinstance(item.value, Dim):
            return float(item.value)
        raise CompileError(f"its {what} is not a known number.")

    def le(self, a: Size, b: Size) -> bool | None:
        """Whether a <= b over the ranges of the symbols."""
        return known_le(a, b, self.func.symbols)

    def eq(self, a: Size, b: Size) -> bool | None:
        """Whether a == b over the ranges of the symbols."""
        return known_eq(a, b, self.func.symbols)

    def is_weight(self, value: Value) -> bool:
        """Whether a value depends on parameters and constants only."""
        if value not in self._weights:
            op = value.producer
            self._weights[value] = op is not None and (
                op.name in ("param", "core.constant") or (
                    bool(op.operands) and all(map(self.is_weight, op.operands))
                )
            )  # fmt: skip
        return self._weights[value]

    def emit(self, name: str, *operands: Value, **attrs: AttrValue) -> Value:
        """Append a core op."""
        return self.op(f"core.{name}", *operands, **attrs)


def shape_of(item: Item) -> tuple[Size, ...]:
    """Shape of an item."""
    return tensor(item).shape if isinstance(item, Value) else item.shape


def dtype_of_item(item: Item) -> str:
    """Dtype of an item."""
    return tensor(item).dtype if isinstance(item, Value) else item.dtype


def axis_in(axis: int, rank: int) -> int:
    """An axis counted from the front. Raises CompileError outside of the rank."""
    if not -rank <= axis < max(rank, 1):
        raise CompileError(f"axis {axis} of a tensor of {rank} axes.")
    return axis % max(rank, 1)


def all_known(items: Sequence[Item | None]) -> bool:
    """Whether every input that is given is known at compile time."""
    return all(isinstance(i, Known) for i in items if i is not None)


def as_array(item: Item) -> np.ndarray:
    """The array of a known item."""
    assert isinstance(item, Known)
    return item.array
