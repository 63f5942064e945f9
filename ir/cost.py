"""What ops, groups and functions cost, as formulas of their symbolic sizes.

Besides the symbols of the function, formulas have means over sequences: `C`, cached tokens that
attention reads, new ones included; `H`, those cached before the step; `A`, keys that a query sees.
With a window of 512 they are `C_512`, `H_512`, `A_512`. `X_128_8` is the expected number of
distinct experts where each row chooses 8 of 128. `Workload` gives all their values.

A group costs the bytes of its boundary and the flops of its body. A reshape costs nothing, and a
parameter costs where it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from inferc.ir.card import AttrValue, card
from inferc.ir.core import Func, Op, Value
from inferc.ir.dims import Size, evaluate, substitute, sym
from inferc.ir.ops.experts import expected_experts
from inferc.ir.types import Memory, TensorType, Type

FREE = frozenset({"param", "core.constant", "core.reshape"})


@dataclass(frozen=True)
class Cost:
    """Floating operations and bytes, additive."""

    flops: Size = 0
    bytes_read: Size = 0
    bytes_written: Size = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.flops + other.flops,
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
        )

    @property
    def bytes_moved(self) -> Size:
        """Bytes read and written."""
        return self.bytes_read + self.bytes_written

    def at(self, bindings: Mapping[str, int]) -> Cost:
        """The cost with numbers in place of formulas."""
        return Cost(*(evaluate(s, bindings) for s in (self.flops, *self._bytes())))

    def _bytes(self) -> tuple[Size, Size]:
        return self.bytes_read, self.bytes_written


@dataclass(frozen=True)
class Workload:
    """One step: new tokens in all, sequences, and the mean context after the step."""

    tokens: int
    sequences: int
    context_tokens: int
    logit_rows: int | None = None  # None: one a sequence
    page_tokens: int = 32

    @classmethod
    def decode(cls, sequences: int, context_tokens: int) -> Workload:
        """One new token for each sequence."""
        return cls(sequences, sequences, context_tokens)

    @classmethod
    def prefill(cls, tokens: int, sequences: int = 1) -> Workload:
        """Whole prompts of equal length, `tokens` in all."""
        return cls(tokens, sequences, tokens // sequences)

    def bindings(self) -> StepBindings:
        """Values of all symbols that steps and their formulas have."""
        new = self.tokens // self.sequences
        return StepBindings(
            T=self.tokens,
            R=self.sequences,
            L=self.sequences if self.logit_rows is None else self.logit_rows,
            P=max(1, -(-self.context_tokens // self.page_tokens)),
            B=self.sequences,
            S=new,
            C=self.context_tokens,
        )


class StepBindings(dict[str, int]):
    """Values of T, R, L, P, C; `H` and `A`, and all with a window, follow from T, R and C."""

    def __missing__(self, name: str) -> int:
        new = self["T"] // self["R"]
        base, _, window = name.partition("_")
        if base == "X":
            experts, _, chosen = window.partition("_")
            return expected_experts(int(experts), int(chosen), self["T"])
        values = {"C": self["C"], "H": self["C"] - new, "A": self["C"] - (new - 1) // 2}
        if base not in values or (window and not window.isdigit()):
            raise KeyError(name)
        if not window:
            return values[base]
        # All new queries together reach `window - 1` tokens back from the first of them.
        reach = {"C": int(window) + new - 1, "H": int(window) - 1, "A": int(window)}
        return min(values[base], reach[base])


def op_cost(op: Op) -> Cost:
    """Cost of an op or a group as one kernel."""
    if op.name in FREE:
        return Cost()
    if op.body is None:
        plain = _plain(op)
        reads = dict(zip(op.operands, plain.reads, strict=True)).values()  # each value once
        return Cost(plain.flops, _total(reads), _total(plain.writes))
    flops = _total(_plain(inner).flops for inner in op.body.ops if inner.name not in FREE)
    return Cost(flops, _group_reads(op), _group_writes(op))


def func_cost(func: Func) -> Cost:
    """Sum over the ops of a function."""
    total = Cost()
    for op in func.ops:
        total = total + op_cost(op)
    return total


def must_move(func: Func) -> Cost:
    """The least that a step can move, however it is compiled.

    Each weight once (of a table that only look-ups read: the rows looked up), each live KV entry
    once (new ones are written, old ones read), the step's inputs and results once. The flops are
    those of the function.
    """
    total = Cost(func_cost(func).flops)
    for op in func.ops:
        if op.name == "param":
            total = total + Cost(bytes_read=_value_reads(op.result))
    for value in func.args:
        if isinstance(value.type, Memory):
            total = total + _live_kv(value)
        elif value.uses:
            total = total + Cost(bytes_read=value.type.nbytes)
    for value in func.results:
        if isinstance(value.type, TensorType):
            total = total + Cost(bytes_written=value.type.nbytes)
    return total


def traffic_ratio(func: Func, bindings: Mapping[str, int]) -> float:
    """Bytes that the kernels move over bytes that must move."""
    moved = evaluate(func_cost(func).bytes_moved, bindings)
    return moved / evaluate(must_move(func).bytes_moved, bindings)


# -- bytes of operands and results
@dataclass(frozen=True)
class _Plain:
    flops: Size
    reads: tuple[Size, ...]
    writes: tuple[Size, ...]


def _plain(op: Op) -> _Plain:
    """What the card says of an op without a body."""
    operands, results = (tuple(v.type for v in side) for side in (op.operands, op.results))
    return _from_card(op.name, operands, results, tuple(op.attrs.items()))


@cache  # the same few ops occur in every layer
def _from_card(
    name: str,
    operands: tuple[Type, ...],
    results: tuple[Type, ...],
    attrs: tuple[tuple[str, AttrValue], ...],
) -> _Plain:
    spec, named = card(name), dict(attrs)
    reads, writes = (tuple(_nbytes(t) for t in side) for side in (operands, results))
    if spec.reads is not None:
        reads = spec.reads(operands, named)
    if spec.writes is not None:
        writes = spec.writes(operands, named)
    return _Plain(spec.flops(operands, named), reads, writes)


def _nbytes(type_: Type) -> Size:
    return type_.nbytes if isinstance(type_, TensorType) else 0


def _total(sizes: Iterable[Size]) -> Size:
    total: Size = 0
    for size in sizes:
        total = total + size
    return total


def _group_reads(op: Op) -> Size:
    assert op.body is not None
    total: Size = 0
    for inside in dict(zip(op.operands, op.body.args, strict=True)).values():
        if isinstance(inside.type, Memory):
            total = total + _total(_plain(o).reads[i] for o, i in _cache_ops(inside))
        else:
            total = total + _value_reads(inside)
    return total


def _group_writes(op: Op) -> Size:
    assert op.body is not None
    total = _total(_nbytes(r.type) for r in op.results)
    return total + _total(_memory_writes(inner) for inner in op.body.ops)


def _memory_writes(op: Op) -> Size:
    """Bytes written to caches and states."""
    if not any(isinstance(r.type, Memory) for r in op.results):
        return 0
    pairs = zip(op.results, _plain(op).writes, strict=True)
    return _total(size for result, size in pairs if isinstance(result.type, Memory))


def _value_reads(value: Value) -> Size:
    """Bytes that all readers of a value read together: partial reads add up, full ones do not."""
    partial: Size = 0
    for op, index in _readers(value):
        if op.body is not None:
            size = _value_reads(op.body.args[index])
        else:
            size = _plain(op).reads[index]
        if isinstance(value.type, TensorType) and size == value.type.nbytes:
            return size
        partial = partial + size
    return partial


def _readers(value: Value) -> Iterator[tuple[Op, int]]:
    """Ops that read a value, looking through reshapes."""
    for use in value.uses:
        if use.op.name == "core.reshape":
            yield from _readers(use.op.result)
        else:
            yield use.op, use.index


def _cache_ops(value: Value) -> Iterator[tuple[Op, int]]:
    """Plain ops that read any version of a cache, inside groups too."""
    for use in value.uses:
        body = use.op.body
        versions: list[Value] = []
        if body is None:
            yield use.op, use.index
            versions = [r for r in use.op.results if isinstance(r.type, Memory)]
        else:
            inner = body.args[use.index]
            yield from _cache_ops(inner)
            returned = zip(body.results, use.op.results, strict=True)
            versions = [out for r, out in returned if _first_version(r) is inner]
        for version in versions:
            yield from _cache_ops(version)


def _first_version(value: Value) -> Value | None:
    """The argument that a cache is a version of; None for other values."""
    while value.producer is not None and isinstance(value.type, Memory):
        value = next(v for v in value.producer.operands if isinstance(v.type, Memory))
    return value if isinstance(value.type, Memory) else None


def _live_kv(value: Value) -> Cost:
    """Each entry of a cache once: new tokens are written, those of before the step are read.

    The states of the step's sequences are read and written once.
    """
    read: Size = 0
    written: Size = 0
    for op, index in _cache_ops(value):
        written = written + _memory_writes(op)
        size = _plain(op).reads[index]
        read = size if size != 0 else read
    return Cost(bytes_read=_of_history(read), bytes_written=written)


def _of_history(size: Size) -> Size:
    """The formula for the tokens that were in the cache before the step."""
    if isinstance(size, int):
        return size
    context = [name for name in size.symbols() if name.partition("_")[0] == "C"]
    return substitute(size, {name: sym("H" + name[1:]) for name in context})
