"""A fused group as the kernels see it: its body, which operands are weights, row shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from inferc.ir.card import AttrValue
from inferc.ir.core import Func, Op, Value
from inferc.ir.dims import Dim, Size, product, substitute, sym
from inferc.ir.text import structural_text
from inferc.ir.types import CacheType, TensorType, Type, substitute_type

# Symbols of a body, in order of appearance: prefill and decode then have equal bodies.
_CANONICAL = ("T", "U", "V", "W")


@dataclass(frozen=True, eq=False)
class Group:
    """One `fuse.group` of a step function."""

    op: Op
    func: Func

    @property
    def body(self) -> Func:
        """What the group computes."""
        assert self.op.body is not None
        return self.op.body

    @property
    def kind(self) -> str:
        """The kind the fusion pass gave it; empty if none."""
        return str(self.op.attrs["kind"])

    @property
    def modules(self) -> tuple[str, ...]:
        """Paths of the source modules, in order."""
        return tuple(dict.fromkeys(root.path for root in self.op.loc.roots()))

    def is_weight(self, arg: Value) -> bool:
        """Whether a body argument stands for a parameter."""
        producer = self.operand(arg).producer
        return producer is not None and producer.name == "param"

    def operand(self, arg: Value) -> Value:
        """The outside value a body argument stands for."""
        return self.op.operands[arg.index]

    def ops(self, name: str) -> list[Op]:
        """Body ops of one name."""
        return [op for op in self.body.ops if op.name == name]

    def canonical_text(self) -> str:
        """Structure of the body with symbols renamed in order of appearance."""
        return structural_text(canonical_body(self.body))


def tensor(value: Value) -> TensorType:
    """The type of a value that must be a tensor."""
    assert isinstance(value.type, TensorType), value
    return value.type


def is_symbolic(size: Size) -> bool:
    """Whether a size depends on the step."""
    return isinstance(size, Dim)


def has_rows(type_: Type) -> bool:
    """Whether the first axis, and only it, is symbolic: one row a token."""
    return (
        isinstance(type_, TensorType)
        and type_.rank > 0
        and is_symbolic(type_.shape[0])
        and not any(is_symbolic(s) for s in type_.shape[1:])
    )


def is_static(type_: Type) -> bool:
    """Whether no axis is symbolic."""
    return isinstance(type_, TensorType) and not any(is_symbolic(s) for s in type_.shape)


def row_shape(type_: TensorType) -> tuple[int, ...]:
    """Sizes of the axes behind the row axis, or of all axes if there is no row axis."""
    shape = type_.shape[1:] if has_rows(type_) else type_.shape
    assert all(isinstance(s, int) for s in shape), type_
    return tuple(int(s) for s in shape)  # type: ignore[arg-type]


def row_elements(type_: TensorType) -> int:
    """Elements of one row (of everything if there is no row axis)."""
    return int(product(row_shape(type_)))  # type: ignore[arg-type]


def int_attr(op: Op, name: str) -> int:
    """An attribute that must be an int."""
    value = op.attrs[name]
    assert isinstance(value, int), (op, name)
    return value


def float_attr(op: Op, name: str) -> float:
    """An attribute that must be a float."""
    value = op.attrs[name]
    assert isinstance(value, float), (op, name)
    return value


def static_size(value: Value, axis: int) -> int:
    """A size that must be known."""
    size = tensor(value).shape[axis]
    assert isinstance(size, int), (value, axis)
    return size


def through_reshape(value: Value) -> Value:
    """The value that a chain of reshapes views."""
    while value.producer is not None and value.producer.name == "core.reshape":
        value = value.producer.operands[0]
    return value


def canonical_body(body: Func) -> Func:
    """A copy of a body whose symbols are renamed in order of appearance, without ranges."""
    names: dict[str, Size] = {}
    for value in [*body.args, *(r for op in body.ops for r in op.results)]:
        if isinstance(value.type, TensorType):
            for size in value.type.shape:
                for name in sorted(size.symbols()) if isinstance(size, Dim) else ():
                    names.setdefault(name, sym(_CANONICAL[len(names)]))
    return _substituted(body, names)


def _substituted(body: Func, names: Mapping[str, Size]) -> Func:
    copied = Func("body")
    values = {a: copied.add_arg(a.hint, substitute_type(a.type, names)) for a in body.args}
    for op in body.ops:
        made = Op(
            op.card, [values[v] for v in op.operands],
            {k: _substitute_attr(v, names) for k, v in op.attrs.items()}, loc=op.loc,
            hints=[r.hint for r in op.results],
            result_types=[substitute_type(r.type, names) for r in op.results],
        )  # fmt: skip
        copied.ops.append(made)
        values.update(zip(op.results, made.results, strict=True))
    copied.results = [values[r] for r in body.results]
    return copied


def _substitute_attr(value: AttrValue, names: Mapping[str, Size]) -> AttrValue:
    if isinstance(value, Dim):
        return substitute(value, names)
    if isinstance(value, tuple):
        return tuple(_substitute_attr(v, names) for v in value)
    return value


def cache_type(value: Value) -> CacheType:
    """The type of a value that must be a cache."""
    assert isinstance(value.type, CacheType), value
    return value.type
