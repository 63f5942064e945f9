"""Matrix products with an element-wise epilogue: `linear`, and `glu_linear` for a pair of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from inferc.codegen.expressions import (
    Line,
    Load,
    Printer,
    Unprintable,
    load_argument,
    reachable,
)
from inferc.codegen.group import Group, has_rows, row_elements, tensor, through_reshape
from inferc.codegen.kernel import (
    Answer,
    KernelDef,
    KernelOptions,
    Ok,
    Refusal,
    Scratch,
    WeightUse,
)
from inferc.codegen.packing import FORMATS, INTEGERS
from inferc.ir.core import Op, Value
from inferc.ir.dims import sym


@dataclass(frozen=True)
class Store:
    """Pointer member `name`, of the kernel's argument `index`, gets `expression`."""

    name: str
    index: int
    expression: str


@dataclass(frozen=True)
class LinearParams:
    """Variables of `linear.cpp.j2`."""

    name: str
    function: str
    weight: str
    math: str
    n: int
    k: int
    x_index: int
    w_index: int
    accumulators: tuple[str, ...]
    loads: tuple[Load, ...]
    lines: tuple[Line, ...]
    stores: tuple[Store, ...]


def math_type(dtype: str, options: KernelOptions) -> str:
    """Arithmetic for a weight type.

    `auto` takes dot products where the target has them: of bf16 pairs for bf16 weights, of int16
    pairs for weights that are integers times a scale.
    """
    compute = options.compute
    if dtype == "bf16":
        dots = compute in ("auto", "int16", "int8") and options.target.has_bf16_dots
        return "MathBf16" if compute == "bf16" or dots else "MathF32"
    if dtype not in INTEGERS:
        return "MathF32"
    if compute == "auto" and options.target.has_int16_dots:
        return "MathInt16"
    return {"int16": "MathInt16", "int8": "MathInt8"}.get(compute, "MathF32")


def math_of(group: Group, dtype: str, options: KernelOptions) -> str:
    """Arithmetic of a group's products with weights of a type.

    In `@prefill` that of `prefill_precision`, which is for the rows of prompts: the few rows that
    logits are wanted for keep the arithmetic of `@decode`.
    """
    precision = options.prefill_precision
    logits = tensor(group.op.results[0]).shape[0] == sym("L")
    if precision == "auto" or group.func.name != "prefill" or logits:
        return math_type(dtype, options)
    if precision in ("int16", "int8") and dtype not in INTEGERS:
        return math_type(dtype, options)
    return math_type(dtype, replace(options, compute=precision))


def integer_arithmetic(group: Group, dtype: str, options: KernelOptions) -> str | None:
    """`int16` or `int8` where products with weights of a type are of integers, else None."""
    return {"MathInt16": "int16", "MathInt8": "int8"}.get(math_of(group, dtype, options))


def _linears(group: Group) -> list[Op]:
    return group.ops("core.linear")


def _refusal(group: Group) -> str | None:
    """Why the products themselves do not fit, or None."""
    linears = _linears(group)
    x, first = linears[0].operands[:2]
    source = through_reshape(x)
    if source.producer is not None or not has_rows(source.type):
        return f"the left operand %{x.hint}: {x.type} is computed inside the group"
    for op in linears:
        w = op.operands[1]
        if op.operands[0] is not x:
            return "the products read different inputs"
        if w.producer is not None or not group.is_weight(w):
            return f"the right operand %{w.hint} is no parameter"
        if w.type != first.type:
            return f"the weights differ in type: {first.type} and {w.type}"
        if tensor(w).dtype not in FORMATS:
            return f"there is no packed layout for weights of type {tensor(w).dtype}"
    if row_elements(tensor(source)) != tensor(first).shape[1]:
        return f"a row of %{source.hint}: {source.type} is not one row of the product"
    return None


def _supports(group: Group, options: KernelOptions) -> Answer:
    reason = _refusal(group)
    if reason is not None:
        return Refusal(reason)
    try:
        _params(group, options, "probe")
    except Unprintable as error:
        return Refusal(f"the epilogue: {error}")
    return Ok()


def _params(group: Group, options: KernelOptions, name: str) -> LinearParams:
    linears = _linears(group)
    x, w = linears[0].operands[:2]
    n, k = tensor(w).shape
    assert isinstance(n, int) and isinstance(k, int)
    accumulators = ("acc",) if len(linears) == 1 else ("gate", "up")
    printer = Printer(n)
    for accumulator, op in zip(accumulators, linears, strict=True):
        printer.known[op.result] = accumulator
    loads = _loads(group, printer, linears, n)
    for accumulator, op in zip(accumulators, linears, strict=True):
        if len(op.operands) == 3:
            _add_bias(printer, op, accumulator)
    stores = []
    for i, result in enumerate(group.body.results):
        if row_elements(tensor(result)) != n:
            raise Unprintable(f"result {i} has rows of {row_elements(tensor(result))}, not {n}")
        at = len(group.op.operands) + i
        stores.append(Store(f"y{i}", at, printer.value(result)))
    dtype = tensor(w).dtype
    return LinearParams(
        name, "matmul" if len(linears) == 1 else "matmul_gated", dtype.upper(),
        math_of(group, dtype, options), n, k, through_reshape(x).index, w.index, accumulators,
        loads, tuple(printer.lines), tuple(stores),
    )  # fmt: skip


def _loads(group: Group, printer: Printer, linears: list[Op], n: int) -> tuple[Load, ...]:
    biases = [op.operands[2] for op in linears if len(op.operands) == 3]
    args = dict.fromkeys(reachable([*group.body.results, *biases], printer.known))
    loads = []
    for arg in args:
        load = load_argument(arg, n, lambda pointer: f"{pointer} + row * kN + col")
        printer.known[arg] = f"{load.name}_"
        loads.append(load)
    return tuple(loads)


def _add_bias(printer: Printer, op: Op, accumulator: str) -> None:
    bias = printer.value(op.operands[2])
    name = f"v{len(printer.lines)}"
    printer.lines.append(Line(name, f"{accumulator} + {bias}"))
    printer.known[op.result] = name


def _weight_operands(group: Group) -> tuple[Value, ...]:
    return tuple(op.operands[1] for op in _linears(group))


def _weights(group: Group) -> tuple[WeightUse, ...]:
    matrices = tuple(w.index for w in _weight_operands(group))
    layout = "n16" if len(matrices) == 1 else "n16_pair"
    return (WeightUse(layout, matrices), *vector_uses(group, matrices))  # type: ignore[arg-type]


def vector_uses(group: Group, without: tuple[int, ...]) -> tuple[WeightUse, ...]:
    """All other parameters are stored as float32 vectors."""
    return tuple(
        WeightUse("vector", (arg.index,))
        for arg in group.body.args
        if group.is_weight(arg) and arg.index not in without
    )


def _arithmetic(group: Group, options: KernelOptions) -> str | None:
    return integer_arithmetic(group, tensor(_linears(group)[0].operands[1]).dtype, options)


def _scratch(group: Group, options: KernelOptions) -> Scratch:
    k = tensor(_weight_operands(group)[0]).shape[1]
    return Scratch(per_worker=f"matmul_scratch_bytes(kStepTokens, {k})")


LINEAR = KernelDef(
    name="linear",
    summary="matrix product with packed weights and an element-wise epilogue",
    priority=10,
    matches=lambda group: len(_linears(group)) == 1,
    supports=_supports,
    params=_params,
    template="linear.cpp.j2",
    weights=_weights,
    scratch=_scratch,
    arithmetic=_arithmetic,
)
GLU_LINEAR = KernelDef(
    name="glu_linear",
    summary="gate and up products over interleaved weights, joined in registers",
    priority=10,
    matches=lambda group: len(_linears(group)) == 2,
    supports=_supports,
    params=_params,
    template="linear.cpp.j2",
    weights=_weights,
    scratch=_scratch,
    arithmetic=_arithmetic,
)
