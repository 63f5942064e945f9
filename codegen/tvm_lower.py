"""Lowers a row body to a TIR function, by one fixed schedule.

    for each row:
        for each stored value, in order:
            loops over its outer axes; the last axis in whole vectors, then a scalar tail

Sums keep four vectors of partial results, joined in a fixed order. So a row's result depends on
nothing but the row. The function takes plain pointers (no TVM calling convention, no assumption on
alignment), and the object needs no TVM library. Imported in the child process only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import IRModule, tirx
from tvm.ir import PointerType, PrimType

from inferc.codegen.group import has_rows, row_elements, row_shape, tensor, through_reshape
from inferc.codegen.row_program import JOINS, REDUCTIONS, stored
from inferc.codegen.tvm_ops import Expr, Index, Part, element, parts
from inferc.ir.core import Func, Op, Value

Stmt = Any  # the package has no type stubs
_UNROLLED_VECTORS = 4
_LOWEST = -3.4028234663852886e38


def lower(body: Func, name: str, lanes: int) -> IRModule:
    """The module that holds `void name(arguments..., results..., int64_t rows)`."""
    return IRModule({name: _RowFunction(body, lanes).build(name)})


def _int(value: int) -> Expr:
    return tirx.IntImm("int64", value)


def _sequence(statements: list[Stmt]) -> Stmt:
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(statements)


class _RowFunction:
    def __init__(self, body: Func, lanes: int) -> None:
        self.body, self.lanes = body, lanes
        self.rows, self.row = tirx.Var("rows", "int64"), tirx.Var("row", "int64")
        self.params: list[Any] = []
        self.buffers: dict[Value, Any] = {}  # values in memory
        self.per_row: set[Value] = set()  # of these: which have a row each (the rest are local)
        self.statements: list[Stmt] = []  # of the innermost open loop
        self.memo: dict[tuple[Value, tuple[int, ...]], Expr] = {}
        self.kept: list[Index] = []  # keeps indices alive: the memo is keyed by identity
        self.names = 0

    # -- function
    def build(self, name: str) -> Any:
        declared = [self._declare(a, a) for a in self.body.args]
        outputs = [
            (through_reshape(r), self._pointer(r, f"y{i}")) for i, r in enumerate(self.body.results)
        ]
        declared += [d for _, (d, _) in outputs]
        copies = []
        for value, (_, buffer) in outputs:
            if value in self.buffers or value.producer is None:
                copies.append((value, buffer))
            else:
                self.buffers[value] = buffer
                self.per_row.add(value)
        local = [self._local(v) for v in stored(self.body) if v not in self.buffers]
        for value in stored(self.body):
            self._store(value)
        for value, buffer in copies:
            self._elementwise(value, buffer, has_row=True)
        body = _sequence([*local, *self.statements])
        loop = tirx.For(self.row, _int(0), self.rows, tirx.ForKind.SERIAL, body)
        whole = _sequence([*declared, loop])
        for pointer in self.params:  # rows may start anywhere: only elements are aligned
            whole = tirx.AttrStmt(pointer, "storage_alignment", tirx.IntImm("int32", 4), whole)
        function = tirx.PrimFunc([*self.params, self.rows], whole)
        return function.with_attr("global_symbol", name)

    def _pointer(self, value: Value, name: str) -> tuple[Stmt, Any]:
        dtype = _dtype(value)
        pointer = tirx.Var(name, PointerType(PrimType(dtype)))
        count = _int(row_elements(tensor(value)))
        size = self.rows * count if has_rows(value.type) else count
        buffer = tirx.decl_buffer((size,), dtype, name=f"{name}_", data=pointer)
        self.params.append(pointer)
        return tirx.DeclBuffer(buffer, data=pointer), buffer

    def _declare(self, arg: Value, key: Value) -> Stmt:
        statement, buffer = self._pointer(arg, f"a{arg.index}")
        self.buffers[key] = buffer
        if has_rows(arg.type):
            self.per_row.add(key)
        return statement

    def _local(self, value: Value) -> Stmt:
        self.names += 1
        size = (_int(row_elements(tensor(value))),)
        buffer = tirx.decl_buffer(size, _dtype(value), name=f"kept{self.names}", scope="local")
        self.buffers[value] = buffer
        return tirx.AllocBuffer(buffer)

    # -- reading
    def read(self, value: Value, index: Index) -> Expr:
        """The element of a value at an index into its row."""
        buffer = self.buffers.get(value)
        if buffer is not None:
            return tirx.BufferLoad(buffer, [self._offset(value, index)])
        key = (value, tuple(id(i) for i in index))
        if key not in self.memo:
            made = element(value, index, self.read, self.bind)
            self.memo[key] = self.bind(made) if len(value.uses) > 1 else made
            self.kept.append(index)
        return self.memo[key]

    def bind(self, expression: Expr) -> Expr:
        """Name a subexpression in the innermost loop; names and constants stay as they are."""
        if isinstance(expression, (tirx.Var, tirx.FloatImm, tirx.IntImm)):
            return expression
        self.names += 1
        name = tirx.Var(f"t{self.names}", str(expression.ty.dtype))
        self.statements.append(tirx.Bind(name, expression))
        return name

    def _offset(self, value: Value, index: Index) -> Expr:
        flat: Expr = _int(0)
        for size, i in zip(row_shape(tensor(value)), index, strict=True):
            flat = flat * _int(size) + i
        if value in self.per_row:
            flat = self.row * _int(row_elements(tensor(value))) + flat
        return flat

    # -- loops
    def _inside(self, make: Callable[[], None]) -> Stmt:
        """The statements that `make` appends, as the body of a loop of their own."""
        outer, memo = self.statements, self.memo
        self.statements, self.memo = [], {}
        make()
        inner, self.statements, self.memo = self.statements, outer, memo
        return _sequence(inner)

    def _loop(self, extent: int, make: Callable[[Expr], None], kind: Any = None) -> None:
        if extent == 1:
            self.statements.append(self._inside(lambda: make(_int(0))))
            return
        self.names += 1
        variable = tirx.Var(f"i{self.names}", "int64")
        body = self._inside(lambda: make(variable))
        kind = tirx.ForKind.SERIAL if kind is None else kind
        self.statements.append(tirx.For(variable, _int(0), _int(extent), kind, body))

    def _vectors(self, extent: int, width: int, make: Callable[[Expr], None]) -> None:
        """`make` at every element: whole vectors of `width`, then a scalar tail."""
        whole = extent // width
        if whole:
            self._loop(whole, lambda block: self._vector(block * _int(width), width, make))
        start = whole * width
        if extent > start:
            self._loop(extent - start, lambda i: make(_int(start) + i))

    def _vector(self, base: Expr, width: int, make: Callable[[Expr], None]) -> None:
        self._loop(width, lambda lane: make(base + lane), tirx.ForKind.VECTORIZED)

    def _outer(
        self, shape: Sequence[int], make: Callable[[Index], None], index: Index = ()
    ) -> None:
        if not shape:
            make(index)
        else:
            self._loop(shape[0], lambda i: self._outer(shape[1:], make, (*index, i)))

    # -- stored values
    def _store(self, value: Value) -> None:
        op = value.producer
        assert op is not None
        if op.name in REDUCTIONS:
            self._reduction(op)
        elif op.name in JOINS:
            self._join(op)
        else:
            self._elementwise(value, self.buffers[value], has_row=value in self.per_row)

    def _elementwise(self, value: Value, buffer: Any, *, has_row: bool) -> None:
        shape = row_shape(tensor(value)) or (1,)
        scalar = not row_shape(tensor(value))
        base = self.row * _int(row_elements(tensor(value))) if has_row else _int(0)

        def put(index: Index) -> None:
            flat: Expr = _int(0)
            for size, i in zip(shape, index, strict=True):
                flat = flat * _int(size) + i
            element_ = self.read_fresh(value, () if scalar else index)
            self.statements.append(tirx.BufferStore(buffer, element_, [base + flat]))

        self._outer(
            shape[:-1],
            lambda outer: self._vectors(shape[-1], self.lanes, lambda i: put((*outer, i))),
        )

    def read_fresh(self, value: Value, index: Index) -> Expr:
        """Like `read`, but computes a stored value instead of loading it."""
        if value.producer is None or value not in self.buffers:
            return self.read(value, index)
        return element(value, index, self.read, self.bind)

    def _join(self, op: Op) -> None:
        """Rotations and concatenations: one loop nest for each part of the result."""
        for part in parts(op):
            self._part(op.result, part)

    def _part(self, value: Value, part: Part) -> None:
        def put(index: Index) -> None:
            at = self._offset(value, part.place(index))
            stored_ = part.value(index, self.read)
            self.statements.append(tirx.BufferStore(self.buffers[value], stored_, [at]))

        width, last = self.lanes if part.contiguous else 1, part.shape[-1]
        self._outer(
            part.shape[:-1],
            lambda outer: self._vectors(last, width, lambda i: put((*outer, i))),
        )

    def _reduction(self, op: Op) -> None:
        *outer, extent = row_shape(tensor(op.operands[0]))
        self._outer(outer, lambda index: self._reduce(op, index, extent))

    def _reduce(self, op: Op, outer: Index, extent: int) -> None:
        """One sum or maximum over the last axis."""
        largest = op.name == "core.amax"
        join: Callable[[Expr, Expr], Expr] = tirx.max if largest else _add
        many = extent >= 2 * _UNROLLED_VECTORS * self.lanes
        width = self.lanes * (_UNROLLED_VECTORS if many else 1)
        partial = self._accumulators(width, _LOWEST if largest else 0.0)

        def take(lane: Expr, i: Expr) -> None:
            total = join(tirx.BufferLoad(partial, [lane]), self.read(op.operands[0], (*outer, i)))
            self.statements.append(tirx.BufferStore(partial, total, [lane]))

        self._reduction_loops(extent, width, take)
        value = _tree([tirx.BufferLoad(partial, [_int(i)]) for i in range(width)], join)
        if op.name == "core.mean":
            value = value * tirx.FloatImm("float32", 1.0 / extent)
        place = (*outer, _int(0)) if op.attrs["keepdim"] else outer
        at = self._offset(op.result, place)
        self.statements.append(tirx.BufferStore(self.buffers[op.result], value, [at]))

    def _accumulators(self, width: int, start: float) -> Any:
        self.names += 1
        buffer = tirx.decl_buffer(
            (_int(width),), "float32", name=f"partial{self.names}", scope="local"
        )
        self.statements.append(tirx.AllocBuffer(buffer))
        value = tirx.FloatImm("float32", start)
        self._vector(
            _int(0), width,
            lambda lane: self.statements.append(tirx.BufferStore(buffer, value, [lane])),
        )  # fmt: skip
        return buffer

    def _reduction_loops(self, extent: int, width: int, take: Callable[[Expr, Expr], None]) -> None:
        """`take(lane, i)` for every i: whole widths, single vectors, single elements."""
        whole = extent // width * width
        if whole:
            self._loop(
                extent // width,
                lambda block: self._lanes(width, lambda lane: take(lane, block * width + lane)),
            )
        vectors = whole + (extent - whole) // self.lanes * self.lanes
        for start in range(whole, vectors, self.lanes):
            self._lanes(self.lanes, lambda lane, at=start: take(lane, _int(at) + lane))  # type: ignore[misc]
        for i in range(vectors, extent):
            take(_int(i - vectors), _int(i))

    def _lanes(self, width: int, make: Callable[[Expr], None]) -> None:
        self._loop(width, make, tirx.ForKind.VECTORIZED)


def _add(a: Expr, b: Expr) -> Expr:
    return a + b


def _tree(values: list[Expr], join: Callable[[Expr, Expr], Expr]) -> Expr:
    """Halves folded onto each other: the order of a vector reduction."""
    while len(values) > 1:
        half = len(values) // 2
        values = [join(a, b) for a, b in zip(values[:half], values[half:], strict=True)]
    return values[0]


def _dtype(value: Value) -> str:
    return {"i32": "int32", "i64": "int64"}.get(tensor(value).dtype, "float32")
