"""A matrix product for each head, and the rows that stand behind its result in each head."""

from __future__ import annotations

from dataclasses import dataclass

from inferc.codegen.group import Group, static_size, tensor, through_reshape
from inferc.codegen.kernel import (
    Answer,
    KernelDef,
    KernelOptions,
    Ok,
    Refusal,
    Scratch,
    WeightUse,
)
from inferc.codegen.kernels.linear import integer_arithmetic, math_of
from inferc.codegen.operand_rows import Unfit, argument, made_by, operand_rows
from inferc.codegen.packing import FORMATS
from inferc.ir.core import Op, Value

_INSIDE = {"core.slice", "core.reshape", "core.concat", "nn.head_linear", "nn.rope"}


@dataclass(frozen=True)
class HeadRows:
    """Heads of an argument's rows: element offset, stride of rows, stride of heads."""

    index: int
    offset: int
    stride: int
    head_stride: int
    width: int


@dataclass(frozen=True)
class HeadLinearParams:
    """Variables of `head_linear.cpp.j2`; indices are of the kernel's arguments."""

    name: str
    weight: str
    math: str
    heads: int
    n: int
    k: int
    turned: bool
    x: HeadRows
    w: int
    beside: HeadRows | None
    rotary_dim: int
    pairing: str
    cos: int | None
    sin: int | None
    y: int


def head_rows(value: Value) -> HeadRows:
    """Walk back from heads `[T, H, D]` to the rows of an argument. Raises Unfit."""
    width = head_stride = static_size(value, 2)
    offset, value = 0, _of_heads(value)
    op = value.producer
    if op is not None and op.name == "core.slice" and op.attrs["axis"] in (2, -1):
        start = op.attrs["start"]
        if op.attrs["step"] != 1 or not isinstance(start, int):
            raise Unfit("a slice of heads with a step")
        value = op.operands[0]
        offset, head_stride = start, static_size(value, 2)
    rows = operand_rows(value)
    return HeadRows(rows.index, rows.offset + offset, rows.stride, head_stride, width)


def _of_heads(value: Value) -> Value:
    """The value before reshapes that change nothing."""
    while (op := value.producer) is not None and op.name == "core.reshape":
        if op.operands[0].type != value.type:
            break
        value = op.operands[0]
    return value


def _product(group: Group) -> Op:
    return group.ops("nn.head_linear")[0]


def _params(group: Group, options: KernelOptions, name: str) -> HeadLinearParams:
    strange = [op.name for op in group.body.ops if op.name not in _INSIDE]
    if strange:
        raise Unfit(f"{strange[0]} beside the product")
    product = _product(group)
    x, w = product.operands
    if w.producer is not None or not group.is_weight(w) or tensor(w).dtype not in FORMATS:
        raise Unfit(f"the matrices %{w.hint}: {w.type} are no packed parameter")
    if tensor(x).rank != 3 or len(group.body.results) != 1:
        raise Unfit(f"heads of {x.type}, {len(group.body.results)} results")
    turned = product.attrs["turned"] is True
    heads, n, k = (static_size(w, i) for i in ((0, 2, 1) if turned else (0, 1, 2)))
    if turned and not tensor(w).is_block:
        raise Unfit(f"matrices of {tensor(w).dtype} are to be stored the other way")
    dtype, beside = tensor(w).dtype, _beside(group.body.results[0], product)
    rope = made_by(beside, "nn.rope") if beside is not None else None
    behind = rope.operands[0] if rope is not None else beside
    return HeadLinearParams(
        name, dtype.upper(), math_of(group, dtype, options), heads, n, k, turned, head_rows(x),
        w.index,
        head_rows(behind) if behind is not None else None,
        2 * static_size(rope.operands[1], -1) if rope is not None else 0,
        str(rope.attrs["pairing"]) if rope is not None else "half",
        argument(rope, 1), argument(rope, 2), len(group.op.operands),
    )  # fmt: skip


def _beside(result: Value, product: Op) -> Value | None:
    """What is joined behind each head of the product; None if nothing is."""
    result = through_reshape(result)
    if result is product.result:
        return None
    joined = result.producer
    if joined is None or joined.name != "core.concat" or len(joined.operands) != 2:
        raise Unfit("a result other than the product, alone or with rows behind each head")
    if joined.attrs["axis"] not in (2, -1) or joined.operands[0] is not product.result:
        raise Unfit("the product is not the first part of each head")
    return joined.operands[1]


def _supports(group: Group, options: KernelOptions) -> Answer:
    try:
        _params(group, options, "probe")
    except Unfit as error:
        return Refusal(str(error))
    return Ok()


def _scratch(group: Group, options: KernelOptions) -> Scratch:
    k = static_size(_product(group).operands[0], 2)
    return Scratch(per_worker=f"matmul_scratch_bytes(kStepTokens, {k})")


HEAD_LINEAR = KernelDef(
    name="head_linear",
    summary="a matrix product for each head, packed weights",
    priority=10,
    matches=lambda group: len(group.ops("nn.head_linear")) == 1,
    supports=_supports,
    params=_params,
    template="head_linear.cpp.j2",
    weights=lambda group: (WeightUse("experts", (_product(group).operands[1].index,)),),
    scratch=_scratch,
    arithmetic=lambda group, options: integer_arithmetic(
        group, tensor(_product(group).operands[1]).dtype, options
    ),
)
