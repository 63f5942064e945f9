"""Bodies of small rows as plain loops: every value of a row is an array, every op a loop over it.

For what neither TVM nor the column loops take: selection by value or index (routers), reductions
over other axes than the last, constants of several values. Rows must be narrow; routers' are.
Arrays are padded to whole vectors, so that functions of one operand run on sixteen elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from inferc.codegen.decompose import decompose
from inferc.codegen.expressions import Unprintable, literal, vector_form
from inferc.codegen.group import has_rows, is_static, row_elements, row_shape, tensor
from inferc.ir.core import Func, Op, Value
from inferc.ir.ops.elementwise import UNARY
from inferc.ir.types import TensorType

_LANES = 16
_LOCAL_BYTES = 1 << 17
_TYPES = {"f32": "float", "i64": "int64_t", "i32": "int32_t", "bool": "uint8_t"}
_BINARY = {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}",
    "maximum": "greater_of({0}, {1})", "minimum": "lesser_of({0}, {1})",
    "logical_and": "{0} && {1}", "logical_or": "{0} || {1}",
    "lt": "{0} < {1}", "le": "{0} <= {1}", "gt": "{0} > {1}", "ge": "{0} >= {1}",
    "eq": "{0} == {1}", "ne": "{0} != {1}",
}  # fmt: skip
FORMS = {f"core.{name}": form for name, form in _BINARY.items()} | {
    "core.where": "{0} ? {1} : {2}",
    "core.broadcast_to": "{0}",
}
INTEGER_UNARY = {"core.logical_not": "!{0}", "core.neg": "-{0}"}


@dataclass(frozen=True)
class Pointer:
    """Argument or result `index` of the kernel; `stride` elements a row, 0: the same for all."""

    name: str
    index: int
    type: str
    stride: int


@dataclass
class RowLoops:
    """Statements for one row. Raises Unprintable for what has no loop."""

    inputs: list[Pointer] = field(default_factory=list)
    outputs: list[Pointer] = field(default_factory=list)
    statements: list[str] = field(default_factory=list)
    names: dict[Value, str] = field(default_factory=dict)
    nbytes: int = 0

    @classmethod
    def of(cls, body: Func, operands: int) -> RowLoops:
        """The loops of a body; its results are the kernel's arguments from `operands` on."""
        body, made = decompose(body), cls()
        for arg in body.args:
            made._load(arg)
        for op in body.ops:
            made._op(op)
        for i, result in enumerate(body.results):
            made._store(result, operands + i, f"y{i}")
        if made.nbytes > _LOCAL_BYTES:
            raise Unprintable(f"a row needs {made.nbytes} bytes, at most {_LOCAL_BYTES} fit")
        return made

    # -- values
    def _declare(self, value: Value) -> str:
        count, dtype = row_elements(_checked(value)), _type(value)
        name = f"v{len(self.names)}"
        self.names[value] = name
        padded = -(-count // _LANES) * _LANES
        self.nbytes += padded * (8 if dtype == "int64_t" else 4)
        self.statements.append(f"alignas(64) {dtype} {name}[{padded}] = {{}};")
        return name

    def _load(self, arg: Value) -> None:
        count, dtype = row_elements(_checked(arg)), _type(arg)
        stride = count if has_rows(arg.type) else 0
        self.inputs.append(Pointer(f"a{arg.index}", arg.index, dtype, stride))
        name = self._declare(arg)
        source = f"a{arg.index}" + (f" + row * {stride}" if stride else "")
        self.statements.append(f"memcpy({name}, {source}, {count} * sizeof({dtype}));")

    def _store(self, result: Value, index: int, name: str) -> None:
        if not has_rows(result.type) or tensor(result).dtype == "bool":
            raise Unprintable(f"the result {result.type} has no rows of numbers")
        count, dtype = row_elements(tensor(result)), _type(result)
        self.outputs.append(Pointer(name, index, dtype, count))
        copy = f"memcpy({name} + row * {count}, {self.names[result]}, {count} * sizeof({dtype}));"
        self.statements.append(copy)

    # -- ops
    def _op(self, op: Op) -> None:
        if op.name in INTEGER_UNARY and tensor(op.result).dtype != "f32":
            self._elementwise(op, INTEGER_UNARY[op.name])
        elif op.name in UNARY or op.name == "core.pow":
            self._vector(op)
        elif op.name in FORMS:
            self._elementwise(op, FORMS[op.name])
        elif op.name in _LOOPS:
            _LOOPS[op.name](self, op)
        else:
            raise Unprintable(f"{op.name} has no loop")

    def _reshape(self, op: Op) -> None:
        if row_elements(_checked(op.result)) != row_elements(tensor(op.operands[0])):
            raise Unprintable("core.reshape that mixes rows")
        self.names[op.result] = self.names[op.operands[0]]

    def _cast(self, op: Op) -> None:
        truth = tensor(op.result).dtype == "bool"
        self._elementwise(op, "{0} != 0" if truth else f"{_type(op.result)}({{0}})")

    def _vector(self, op: Op) -> None:
        """Functions of one operand, on whole vectors."""
        if tensor(op.result).dtype != "f32":
            raise Unprintable(f"{op.name} of {op.operands[0].type}")
        expression = vector_form(op).format(f"load({self.names[op.operands[0]]} + i)")
        name = self._declare(op.result)
        count = row_elements(tensor(op.result))
        self._loop([f"int i = 0; i < {count}; i += {_LANES}"], f"store({name} + i, {expression});")

    def _elementwise(self, op: Op, form: str) -> None:
        shape = _full(op.result)
        operands = [f"{self.names[v]}[{_broadcast(v, shape)}]" for v in op.operands]
        name = self._declare(op.result)
        self._loop(_ranges(shape), f"{name}[{_index(shape)}] = {form.format(*operands)};")

    def _reduce(self, op: Op) -> None:
        """In order of the elements."""
        source, shape = op.operands[0], _full(op.operands[0])
        axes = op.attrs["axes"]
        assert isinstance(axes, tuple)
        over = {int(a) % len(shape) for a in axes}  # type: ignore[arg-type]
        if has_rows(source.type) and 0 in over:
            raise Unprintable(f"{op.name} over rows")
        name = self._declare(op.result)
        kept = [1 if i in over else size for i, size in enumerate(shape)]
        at = _index(kept, [i for i, size in enumerate(kept) if i not in over])
        element = f"{self.names[source]}[{_index(shape)}]"
        count = row_elements(tensor(op.result))
        if op.name == "core.amax":
            fill = "-__builtin_inff()" if _type(source) == "float" else "INT64_MIN"
            self._loop([f"int i = 0; i < {count}; i++"], f"{name}[i] = {fill};")
            self._loop(_ranges(shape), f"{name}[{at}] = greater_of({name}[{at}], {element});")
            return
        self._loop(_ranges(shape), f"{name}[{at}] += {element};")
        if op.name == "core.mean":
            total = math.prod(shape[i] for i in over)
            self._loop([f"int i = 0; i < {count}; i++"], f"{name}[i] *= {literal(1 / total)};")

    def _select(self, op: Op) -> None:
        width = int(tensor(op.operands[0]).shape[-1])  # type: ignore[arg-type]
        rows = row_elements(_checked(op.operands[0])) // width
        names = [self.names[v] for v in op.operands]
        results = [self._declare(r) for r in op.results]
        if op.name == "core.topk":
            k = op.attrs["k"]
            calls = f"topk_row({names[0]} + r * {width}, {width}, {k}, " + ", ".join(
                f"{n} + r * {k}" for n in results
            )
        else:
            k = int(tensor(op.operands[1]).shape[-1])  # type: ignore[arg-type]
            taking = op.name == "core.take_along"
            counts = [width, k] if taking else [width, k, k]
            given = [f"{n} + r * {c}" for n, c in zip(names, counts, strict=True)]
            calls = f"{'take' if taking else 'put'}_row({', '.join(given)}, {width}, {k}, "
            calls += f"{results[0]} + r * {k if taking else width}"
        self._loop([f"int r = 0; r < {rows}; r++"], f"{calls});")

    # -- moves
    def _slice(self, op: Op) -> None:
        axis, shape = op.attrs["axis"], _full(op.result)
        start, step = op.attrs["start"], op.attrs["step"]
        axis = int(axis) % len(shape)  # type: ignore[arg-type]
        if axis == 0 and has_rows(op.result.type):
            raise Unprintable("core.slice of rows")
        indices = [f"i{i}" for i in range(len(shape))]
        indices[axis] = f"({start} + {step} * i{axis})"
        self._move(op, indices)

    def _transpose(self, op: Op) -> None:
        perm = op.attrs["perm"]
        assert isinstance(perm, tuple)
        if has_rows(op.operands[0].type) and perm[0] != 0:
            raise Unprintable("core.transpose of rows")
        indices = [""] * len(perm)
        for to, from_ in enumerate(perm):
            indices[int(from_)] = f"i{to}"  # type: ignore[arg-type]
        self._move(op, indices)

    def _move(self, op: Op, indices: list[str]) -> None:
        source, shape = op.operands[0], _full(op.result)
        name = self._declare(op.result)
        at = _flat(_full(source), indices)
        self._loop(_ranges(shape), f"{name}[{_index(shape)}] = {self.names[source]}[{at}];")

    def _concat(self, op: Op) -> None:
        shape = _full(op.result)
        axis = int(op.attrs["axis"]) % len(shape)  # type: ignore[arg-type]
        if axis == 0 and has_rows(op.result.type):
            raise Unprintable("core.concat of rows")
        name, start = self._declare(op.result), 0
        for value in op.operands:
            part = _full(value)
            indices = [f"i{i}" for i in range(len(shape))]
            indices[axis] = f"({start} + i{axis})"
            target = f"{name}[{_flat(shape, indices)}]"
            self._loop(_ranges(part), f"{target} = {self.names[value]}[{_index(part)}];")
            start += part[axis]

    def _rope(self, op: Op) -> None:
        x, cos, sin = (self.names[v] for v in op.operands)
        width, half = _full(op.result)[-1], _full(op.operands[1])[-1]
        name, count = self._declare(op.result), row_elements(tensor(op.result))
        self.statements.append(f"memcpy({name}, {x}, {count} * sizeof(float));")
        pair = f"h * {width} + i", f"h * {width} + {half} + i"
        if op.attrs["pairing"] == "interleaved":
            pair = f"h * {width} + 2 * i", f"h * {width} + 2 * i + 1"
        a, b = (f"{x}[{at}]" for at in pair)
        lines = (
            f"{name}[{pair[0]}] = {a} * {cos}[i] - {b} * {sin}[i];",
            f"{name}[{pair[1]}] = {b} * {cos}[i] + {a} * {sin}[i];",
        )
        for line in lines:
            self._loop(
                [f"int h = 0; h < {count // width}; h++", f"int i = 0; i < {half}; i++"], line
            )

    def _constant(self, op: Op) -> None:
        values, name = op.attrs["values"], self._declare(op.result)
        assert isinstance(values, tuple)
        real = tensor(op.result).dtype == "f32"
        for i, value in enumerate(values):
            text = literal(value) if real else str(int(value))  # type: ignore[arg-type]
            self.statements.append(f"{name}[{i}] = {text};")

    def _iota(self, op: Op) -> None:
        count = row_elements(_checked(op.result))
        if has_rows(op.result.type):
            raise Unprintable("core.iota over rows")
        name = self._declare(op.result)
        self._loop([f"int i = 0; i < {count}; i++"], f"{name}[i] = {_type(op.result)}(i);")

    def _loop(self, ranges: Sequence[str], statement: str) -> None:
        head = " ".join(f"for ({r})" for r in ranges)
        self.statements.append(f"{head} {statement}" if head else statement)


_LOOPS: dict[str, Callable[[RowLoops, Op], None]] = {
    "core.reshape": RowLoops._reshape,
    "core.cast": RowLoops._cast,
    "core.topk": RowLoops._select,
    "core.take_along": RowLoops._select,
    "core.put_along": RowLoops._select,
    "core.sum": RowLoops._reduce,
    "core.mean": RowLoops._reduce,
    "core.amax": RowLoops._reduce,
    "core.slice": RowLoops._slice,
    "core.transpose": RowLoops._transpose,
    "core.concat": RowLoops._concat,
    "nn.rope": RowLoops._rope,
    "core.constant": RowLoops._constant,
    "core.iota": RowLoops._iota,
}


def _checked(value: Value) -> TensorType:
    """The type of a value whose axes behind the rows are known. Raises Unprintable."""
    type_ = value.type
    if not isinstance(type_, TensorType) or not (has_rows(type_) or is_static(type_)):
        raise Unprintable(f"%{value.hint}: {type_} has no rows of known size")
    return type_


def _type(value: Value) -> str:
    dtype = tensor(value).dtype
    found = _TYPES.get("f32" if dtype in ("bf16", "f16") else dtype)  # parameters are widened
    if found is None:
        raise Unprintable(f"%{value.hint}: rows of {dtype}")
    return found


def _full(value: Value) -> list[int]:
    """The shape with the row axis as 1."""
    own = list(row_shape(_checked(value)))
    return [1, *own] if has_rows(value.type) else own


def _ranges(shape: Sequence[int]) -> list[str]:
    return [f"int i{i} = 0; i{i} < {s}; i{i}++" for i, s in enumerate(shape)]


def _index(shape: Sequence[int], axes: Sequence[int] | None = None) -> str:
    """Flat index of the element at i0, i1, ..; of some axes only if given."""
    wanted = range(len(shape)) if axes is None else axes
    return _flat(shape, [f"i{i}" if i in wanted else "0" for i in range(len(shape))])


def _flat(shape: Sequence[int], indices: Sequence[str]) -> str:
    terms = []
    for i, (size, index) in enumerate(zip(shape, indices, strict=True)):
        stride = math.prod(shape[i + 1 :])
        if index == "0" or (size == 1 and index == f"i{i}"):
            continue
        terms.append(index if stride == 1 else f"{index} * {stride}")
    return " + ".join(terms) or "0"


def _broadcast(value: Value, shape: Sequence[int]) -> str:
    """Flat index of an operand whose shape broadcasts to `shape`."""
    own = _full(value)
    shift = len(shape) - len(own)
    indices = ["0" if s == 1 else f"i{i + shift}" for i, s in enumerate(own)]
    return _flat(own, indices)
