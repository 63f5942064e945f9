"""One element of a row as C++: what is not stored is computed where it is read.

Every expression gets a name in the innermost open loop, once an index: compilers drop the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from inferc.codegen.expressions import Unprintable, literal, uniform_constant, vector_form
from inferc.codegen.group import has_rows, int_attr, is_static, row_shape, tensor
from inferc.codegen.row_loops import FORMS, INTEGER_UNARY
from inferc.ir.core import Op, Value
from inferc.ir.ops.elementwise import UNARY
from inferc.ir.types import TensorType

Index = tuple[str, ...]
"""An `int` expression for each axis behind the rows."""
_TYPES = {"f32": "float", "i64": "int64_t", "i32": "int32_t", "bool": "bool"}
_PLAIN_UNARY = {"core.cos": "cos({0})", "core.sin": "sin({0})", "core.floor": "floor({0})"}


def c_type(value: Value) -> str:
    """The C++ type of an element. Raises Unprintable."""
    dtype = tensor(value).dtype
    found = _TYPES.get("f32" if dtype in ("bf16", "f16") else dtype)  # parameters are widened
    if found is None:
        raise Unprintable(f"%{value.hint}: rows of {dtype}")
    return found


def shape_of(value: Value) -> tuple[int, ...]:
    """Sizes behind the rows. Raises Unprintable if they are not known."""
    type_ = value.type
    if not isinstance(type_, TensorType) or not (has_rows(type_) or is_static(type_)):
        raise Unprintable(f"%{value.hint}: {type_} has no rows of known size")
    return row_shape(type_)


def row_axis(op: Op, axis: int, value: Value) -> int:
    """An axis of a value counted without the row axis. Raises Unprintable if it is the row axis."""
    axis %= tensor(value).rank
    if not has_rows(value.type):
        return axis
    if axis == 0:
        raise Unprintable(f"{op.name} along the rows")
    return axis - 1


@dataclass
class Elements:
    """Names elements in the innermost open loop.

    Attributes:
        arrays: the array that holds a value's row, for values in memory.
        lines: statements of the innermost open loop.
        each: where a thread takes four elements that lie together, statements for element `v`;
            `lines` then hold what the four share: indices (of the first), and what is read.
        touched: arrays that these read, and where.
    """

    arrays: dict[Value, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    each: list[str] | None = None
    touched: set[tuple[str, str]] = field(default_factory=set)
    _named: dict[tuple[Value, Index], str] = field(default_factory=dict)
    _flat: dict[tuple[tuple[int, ...], Index], str] = field(default_factory=dict)
    _split: dict[tuple[tuple[int, ...], str], Index] = field(default_factory=dict)
    _names: int = 0

    def begin(self, *, fours: bool = False) -> None:
        """Forget what was named: another loop begins."""
        self.lines, self.touched = [], set()
        self.each = [] if fours else None
        self._named, self._flat, self._split = {}, {}, {}

    def name(self, type_: str, expression: str) -> str:
        """A new name for an expression; `int` is the type of indices alone."""
        self._names += 1
        made = f"t{self._names}"
        lines = self.lines if self.each is None or type_ == "int" else self.each
        lines.append(f"const {type_} {made} = {expression};")
        return made

    def _load(self, value: Value, at: str) -> str:
        """A name for an element in memory, or for that of four which has the number `v`."""
        self._names += 1
        made, type_, array = f"t{self._names}", c_type(value), self.arrays[value]
        shape = shape_of(value)
        if self.each is None or math.prod(shape) == 1 or shape[-1] == 1:
            self.lines.append(f"const {type_} {made} = {array}[{at}];")
            return made
        self.lines.append(f"{type_} {made}[4];")
        self.lines.append(f"load_four({array} + {at}, {made});")
        return f"{made}[v]"

    # -- indices
    def split(self, shape: tuple[int, ...], flat: str) -> Index:
        """The index of each axis from the number of an element."""
        key = shape, flat
        if key not in self._split:
            index, inner = [], math.prod(shape)
            for axis, size in enumerate(shape):
                inner //= max(size, 1)
                index.append(self._axis(flat, size, inner, outermost=axis == 0))
            self._split[key] = tuple(index)
            self._flat.setdefault((shape, tuple(index)), flat)
        return self._split[key]

    def _axis(self, flat: str, size: int, inner: int, *, outermost: bool) -> str:
        if size == 1:
            return "0"
        text = flat if inner == 1 else f"{flat} / {inner}"
        if not outermost:
            text = f"{text} % {size}"
        return text if text == flat else self.name("int", text)

    def flat(self, shape: tuple[int, ...], index: Index) -> str:
        """The number of the element at an index."""
        key = shape, index
        if key not in self._flat:
            terms, inner = [], math.prod(shape)
            for size, i in zip(shape, index, strict=True):
                inner //= max(size, 1)
                if size > 1 and i != "0":
                    terms.append(i if inner == 1 else f"{i} * {inner}")
            text = " + ".join(terms) or "0"
            simple = len(terms) == 1 and " " not in text
            self._flat[key] = text if simple or not terms else self.name("int", text)
        return self._flat[key]

    # -- elements
    def read(self, value: Value, index: Index) -> str:
        """A name, or a literal, for the element of a value."""
        key = value, index
        if key not in self._named:
            if value in self.arrays:
                at = self.flat(shape_of(value), index)
                self.touched.add((self.arrays[value], at))
                self._named[key] = self._load(value, at)
            else:
                self._named[key] = self.compute(value, index)
        return self._named[key]

    def compute(self, value: Value, index: Index) -> str:
        """The same, of a value that is not to be read from memory. Raises Unprintable."""
        op = value.producer
        assert op is not None, value
        if op.name in _VIEWS:
            return self.read(op.operands[0], _VIEWS[op.name](self, op, index))
        if op.name == "core.constant":
            return _number(uniform_constant(op), c_type(value))
        if op.name == "core.iota":
            return self.name(c_type(value), f"{c_type(value)}({index[0]})")
        if op.name == "core.take_along":
            x, indices = op.operands
            at = self.name("int", f"int({self.read(indices, index)})")
            return self.read(x, (*index[:-1], at))
        form = _form(op)
        operands = [self.read(v, self._broadcast(v, index)) for v in op.operands]
        return self.name(c_type(value), form.format(*operands))

    def _broadcast(self, operand: Value, index: Index) -> Index:
        shape = shape_of(operand)
        used = index[len(index) - len(shape) :] if shape else ()
        return tuple("0" if size == 1 else i for size, i in zip(shape, used, strict=True))

    def _reshape(self, op: Op, index: Index) -> Index:
        source, result = shape_of(op.operands[0]), shape_of(op.result)
        if math.prod(source) != math.prod(result):
            raise Unprintable("core.reshape that mixes rows")
        return self.split(source, self.flat(result, index))

    def _slice(self, op: Op, index: Index) -> Index:
        axis = row_axis(op, int_attr(op, "axis"), op.result)
        start, step = int_attr(op, "start"), int_attr(op, "step")
        text = index[axis] if step == 1 else f"{index[axis]} * {step}"
        moved = self.name("int", f"{start} + {text}") if start or step != 1 else text
        return (*index[:axis], moved, *index[axis + 1 :])

    def _transpose(self, op: Op, index: Index) -> Index:
        perm = [int(p) for p in op.attrs["perm"]]  # type: ignore[union-attr, arg-type]
        if has_rows(op.result.type):
            if perm[0] != 0:
                raise Unprintable("core.transpose of the rows")
            perm = [p - 1 for p in perm[1:]]
        moved = dict(zip(perm, index, strict=True))
        return tuple(moved[axis] for axis in range(len(perm)))


_VIEWS: dict[str, Callable[[Elements, Op, Index], Index]] = {
    "core.reshape": Elements._reshape,
    "core.slice": Elements._slice,
    "core.transpose": Elements._transpose,
    "core.broadcast_to": lambda self, op, index: self._broadcast(op.operands[0], index),
}
VIEWS = frozenset(_VIEWS)


def is_uniform(op: Op) -> bool:
    """Whether all elements of a constant are the same."""
    try:
        uniform_constant(op)
    except Unprintable:
        return False
    return True


def _number(value: float, type_: str) -> str:
    return literal(value) if type_ == "float" else str(int(value))


def _form(op: Op) -> str:
    """The expression of an element-wise op over `{0}`, `{1}`, ... Raises Unprintable."""
    real = tensor(op.operands[0]).dtype in ("f32", "bf16", "f16") if op.operands else False
    if op.name in INTEGER_UNARY and not real:
        return INTEGER_UNARY[op.name]
    if op.name in _PLAIN_UNARY and real:
        return _PLAIN_UNARY[op.name]
    if op.name == "core.div" and not real:
        raise Unprintable(f"core.div of {op.operands[0].type}")
    if op.name == "core.pow":
        return _power(op)
    if op.name in UNARY:
        if not real:
            raise Unprintable(f"{op.name} of {op.operands[0].type}")
        return vector_form(op)
    if op.name == "core.cast":
        kind = c_type(op.result)
        return "{0} != 0" if kind == "bool" else f"{kind}({{0}})"
    if op.name in FORMS:
        return FORMS[op.name]
    raise Unprintable(f"{op.name} is not element-wise")


def _power(op: Op) -> str:
    if tensor(op.operands[0]).dtype != "f32":
        raise Unprintable(f"core.pow of {op.operands[0].type}")
    try:
        return vector_form(op)
    except Unprintable:
        return "pow({0}, {1})"
