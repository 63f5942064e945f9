"""Bodies of rows as loops that the threads of a block share: one loop a value that is stored.

Results are stored in global memory, the other stored values (reductions, joined values, what is
costly and read twice, what is selected from) in shared memory. All else is computed where it is
read. So a row comes from memory once, and again from the caches where several loops read it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from inferc.codegen.cuda_row_elements import Elements, Index, c_type, is_uniform, shape_of
from inferc.codegen.cuda_row_parts import parts
from inferc.codegen.cuda_row_plan import check_rows, in_fours, keeps_fours, stored_values
from inferc.codegen.decompose import decompose
from inferc.codegen.expressions import Unprintable, literal
from inferc.codegen.group import has_rows, int_attr, row_elements, tensor, through_reshape
from inferc.codegen.row_loops import Pointer
from inferc.codegen.row_program import JOINS, REDUCTIONS
from inferc.ir.core import Func, Op, Value

SHARED_BYTES = 48 << 10
"""What every architecture gives a block without asking."""
_BYTES = {"float": 4, "int32_t": 4, "int64_t": 8, "bool": 1}
_LOWEST = {
    "float": "-INFINITY", "int32_t": "-2147483647 - 1", "int64_t": "-9223372036854775807 - 1",
}  # fmt: skip
_WARP = 32
_OWN, _OWN_FOUR = "i", "4k"
"""Elements that are one thread's in all loops, of either kind."""
Place = tuple[str, str]
"""An array, and the number of an element of it."""


@dataclass
class RowLoops:
    """Statements for one row. Raises Unprintable for what has no loop.

    Attributes:
        inputs: operands that are read.
        outputs: results.
        constants: tables in the code.
        shared: declarations of arrays in shared memory.
        statements: loops, and barriers where one reads what other threads wrote in another.
        unread: where arrays were written since the last barrier.
        widest: elements that the largest loop goes over.
        nbytes: of the arrays in shared memory.
    """

    threads: int = 256
    inputs: list[Pointer] = field(default_factory=list)
    outputs: list[Pointer] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)
    shared: list[str] = field(default_factory=list)
    statements: list[str] = field(default_factory=list)
    elements: Elements = field(default_factory=Elements)
    unread: dict[str, set[str]] = field(default_factory=dict)
    widest: int = 1
    nbytes: int = 0

    @classmethod
    def of(cls, body: Func, operands: int, threads: int = 256) -> RowLoops:
        """The loops of a body; its results are the kernel's arguments from `operands` on."""
        body, made = decompose(body), cls(threads)
        check_rows(body)
        for arg in body.args:
            made._input(arg)
        for op in body.ops:
            if op.name == "core.constant" and not is_uniform(op):
                made._constant(op)
        copies = made._results(body, operands)
        kept = stored_values(body)
        for value in kept:
            if value not in made.elements.arrays:
                made._keep(value)
        for op in body.ops:
            if any(r in kept for r in op.results):
                made._store(op)
        for value, name in copies:
            made._elementwise(value, name, again=True)
        if made.nbytes > SHARED_BYTES:
            raise Unprintable(f"a row keeps {made.nbytes} bytes, at most {SHARED_BYTES} fit")
        return made

    @property
    def splits(self) -> bool:
        """Whether threads need nothing of each other, so that blocks can share a row."""
        return not self.shared and BARRIER not in self.statements

    # -- memory
    def _input(self, arg: Value) -> None:
        count, type_ = math.prod(shape_of(arg)), c_type(arg)
        name = f"a{arg.index}"
        self.elements.arrays[arg] = name
        self.inputs.append(Pointer(name, arg.index, type_, count if has_rows(arg.type) else 0))

    def _constant(self, op: Op) -> None:
        type_, name = c_type(op.result), f"c{len(self.constants)}"
        values = op.attrs["values"]
        assert isinstance(values, tuple)
        texts = [literal(v) if type_ == "float" else str(int(v)) for v in values]  # type: ignore[arg-type]
        self.elements.arrays[op.result] = name
        self.constants.append(
            f"static constexpr {type_} {name}[{len(texts)}] = {{{', '.join(texts)}}};"
        )

    def _results(self, body: Func, operands: int) -> list[tuple[Value, str]]:
        """Declares results; returns those that are copies of what is stored elsewhere."""
        copies = []
        for i, result in enumerate(body.results):
            if not has_rows(result.type) or tensor(result).dtype == "bool":
                raise Unprintable(f"the result {result.type} has no rows of numbers")
            value, name = through_reshape(result), f"y{i}"
            count = row_elements(tensor(result))
            self.outputs.append(Pointer(name, operands + i, c_type(result), count))
            if count != math.prod(shape_of(value)):
                raise Unprintable("core.reshape that mixes rows")
            if value.producer is None or value in self.elements.arrays:
                copies.append((value, name))
            else:
                self.elements.arrays[value] = name
        return copies

    def _keep(self, value: Value) -> None:
        name, count, type_ = f"kept{len(self.shared)}", math.prod(shape_of(value)), c_type(value)
        self.elements.arrays[value] = name
        self.nbytes += -(-count * _BYTES[type_] // 16) * 16
        self.shared.append(f"alignas(16) __shared__ {type_} {name}[{count}];")

    # -- loops
    def _store(self, op: Op) -> None:
        if op.name in REDUCTIONS:
            self._reduce(op)
        elif op.name in JOINS:
            for part in parts(op):
                self._loop(
                    part.shape,
                    lambda index, part=part: (  # type: ignore[misc]
                        part.value(self.elements, index),
                        part.place(self.elements, index),
                    ),
                    op.result,
                    fours=part.fours and in_fours(self.elements.arrays, part.sources),
                )
        elif op.name == "core.topk":
            self._topk(op)
        elif op.name == "core.put_along":
            self._put(op)
        else:
            self._elementwise(op.result, self.elements.arrays[op.result])

    def _elementwise(self, value: Value, name: str, *, again: bool = False) -> None:
        def one(index: Index) -> tuple[str, Index]:
            read = self.elements.read if again else self.elements.compute
            return read(value, index), index

        sources = [value] if again or value.producer is None else value.producer.operands
        fours = in_fours(self.elements.arrays, sources) and (again or keeps_fours(value))
        self._loop(shape_of(value), one, value, name, fours=fours)

    def _loop(
        self, shape: tuple[int, ...], one: Callable[[Index], tuple[str, Index]], value: Value,
        name: str = "", *, fours: bool = False,
    ) -> None:  # fmt: skip
        """`one` gives an element and its place for each index of `shape`.

        With `fours`, a thread takes four elements that lie together.
        """
        elements, count = self.elements, math.prod(shape)
        fours = fours and shape != () and shape[-1] % 4 == 0 and c_type(value) == "float"
        elements.begin(fours=fours)
        element, place = one(elements.split(shape, "i"))
        at, target = elements.flat(shape_of(value), place), name or elements.arrays[value]
        if not fours:
            self._statement(
                f"for (int i = thread; i < {count}; i += kStride)",
                [*elements.lines, f"{target}[{at}] = {element};"], count, elements.touched,
                {(target, at)},
            )  # fmt: skip
            return
        reads = {(array, _OWN_FOUR if a == _OWN else a) for array, a in elements.touched}
        self._statement(
            f"for (int i = 4 * thread; i < {count}; i += 4 * kStride)",
            [
                *elements.lines, "float four[4];", "INFERC_UNROLL for (int v = 0; v < 4; v++) {",
                *(f"    {line}" for line in elements.each or ()), f"    four[v] = {element};", "}",
                f"store_four({target} + {at}, four);",
            ],
            count, reads, {(target, _OWN_FOUR if at == _OWN else at)},
        )  # fmt: skip

    def _statement(
        self, head: str, lines: list[str], count: int, reads: set[Place], writes: set[Place]
    ) -> None:
        self._wait(reads)
        for array, at in writes:
            self.unread.setdefault(array, set()).add(at)
        self.widest = max(self.widest, count)
        body = "\n".join(f"    {line}" for line in lines)
        self.statements.append(f"{head} {{\n{body}\n}}")

    def _wait(self, reads: set[Place]) -> None:
        """A barrier if another thread may have written what is read."""
        if any(
            array in self.unread and (at not in (_OWN, _OWN_FOUR) or self.unread[array] != {at})
            for array, at in reads
        ):
            self.statements.append(BARRIER)
            self.unread.clear()

    def _reduce(self, op: Op) -> None:
        source, full = op.operands[0], shape_of(op.operands[0])
        first = int(has_rows(source.type))
        axes = op.attrs["axes"]
        assert isinstance(axes, tuple)
        over = {int(a) % tensor(source).rank - first for a in axes}  # type: ignore[arg-type]
        if -1 in over:
            raise Unprintable(f"{op.name} over rows")
        kept = tuple(1 if i in over else size for i, size in enumerate(full))
        reduced = tuple(size if i in over else 1 for i, size in enumerate(full))
        outputs, extent = math.prod(kept), math.prod(reduced)
        self.elements.begin()
        at = zip(self.elements.split(kept, "o"), self.elements.split(reduced, "r"), strict=True)
        index = tuple(r if i in over else o for i, (o, r) in enumerate(at))
        value = self.elements.read(source, index)
        largest, type_ = op.name == "core.amax", c_type(source)
        fill = _LOWEST.get(type_, "0") if largest else "0"
        join = "greater_of(part, {0})" if largest else "part + {0}"
        lines = [*self.elements.lines, f"part = {join.format(value)};"]
        self._reduction(op, lines, (type_, fill), outputs, extent)

    def _reduction(
        self, op: Op, lines: list[str], start: tuple[str, str], outputs: int, extent: int
    ) -> None:
        """A block for one long sum, a warp for each of several, a thread for integers."""
        type_, fill = start
        kind = "max" if op.name == "core.amax" else "sum"
        who, every, first, step = "warp", f"kThreads / {_WARP}", "lane", str(_WARP)
        finish, owner = f"warp_{kind}(part)", "if (lane == 0) "
        if type_ != "float":
            who, every, first, step = "thread", "kThreads", "0", "1"
            finish, owner = "part", ""
        elif outputs == 1 and extent > 2 * _WARP and self.threads > _WARP:
            who, every, first, step = "0", "1", "thread", "kThreads"
            finish, owner = f"block_{kind}<kThreads>(part)", "if (thread == 0) "
        if op.name == "core.mean":
            finish += f" * {literal(1 / extent)}"
        array = self.elements.arrays[op.result]
        inner = [f"    {line}" for line in lines]
        self._statement(
            f"for (int o = {who}; o < {outputs}; o += {every})",
            [
                f"{type_} part = {fill};",
                f"for (int r = {first}; r < {extent}; r += {step}) {{", *inner, "}",
                f"const {type_} all = {finish};", f"{owner}{array}[o] = all;",
            ],
            outputs * extent, self.elements.touched, {(array, "o")},
        )  # fmt: skip

    # -- selection
    def _array(self, value: Value) -> str:
        return self.elements.arrays[through_reshape(value)]

    def _topk(self, op: Op) -> None:
        width, k = shape_of(op.operands[0])[-1], int_attr(op, "k")
        rows = math.prod(shape_of(op.operands[0])) // width
        x, values, indices = (self._array(v) for v in (op.operands[0], *op.results))
        results = f"{values} + r * {k}, {indices} + r * {k}"
        call = f"topk_row({x} + r * {width}, {width}, {k}, {results});"
        self._statement(
            f"for (int r = warp; r < {rows}; r += kThreads / {_WARP})", [call], rows * width,
            {(x, "r")}, {(values, "r"), (indices, "r")},
        )  # fmt: skip

    def _put(self, op: Op) -> None:
        """A copy, then the replacements, in order where an index comes twice."""
        x, indices, values = op.operands
        shape, k, array = shape_of(x), shape_of(indices)[-1], self.elements.arrays[op.result]
        self._loop(shape, lambda index: (self.elements.read(x, index), index), op.result)
        self.elements.begin()
        outer = (*self.elements.split(shape[:-1], "r"), "j")
        at = self.elements.name("int", f"int({self.elements.read(indices, outer)})")
        value = self.elements.read(values, outer)
        place = self.elements.flat(shape, (*outer[:-1], at))
        inner = [f"    {line}" for line in (*self.elements.lines, f"{array}[{place}] = {value};")]
        rows = math.prod(shape) // shape[-1]
        self._statement(
            f"for (int r = thread; r < {rows}; r += kThreads)",
            [f"for (int j = 0; j < {k}; j++) {{", *inner, "}"], rows * k,
            {*self.elements.touched, (array, "r")}, {(array, "r")},
        )  # fmt: skip


BARRIER = "row_barrier<kThreads>();"
