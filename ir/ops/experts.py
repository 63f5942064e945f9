"""Mixture of experts: every row goes through a few of many gated MLPs, weighted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from inferc.ir.card import Attr, Attrs, AttrValue, BadSample, Card, Sample, TypeMismatch, register
from inferc.ir.dims import Size, product, sym
from inferc.ir.ops._shapes import Dims
from inferc.ir.ops.elementwise import sigmoid
from inferc.ir.ops.nn import ACTIVATIONS
from inferc.ir.types import TensorType, Type

EXPERT_ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    **ACTIVATIONS,
    "relu2": lambda x: np.square(np.maximum(x, x.dtype.type(0))),
}


T = TypeVar("T")


@dataclass(frozen=True)
class ExpertOperands(Generic[T]):
    """The operands of `nn.experts` by name; what an op does not have is None."""

    x: T
    indices: T
    weights: T
    gate: T | None
    up: T
    down: T
    gate_bias: T | None = None
    up_bias: T | None = None
    down_bias: T | None = None


def expert_operands(operands: Sequence[T], attrs: Attrs) -> ExpertOperands[T]:
    """Operands by name. Raises TypeMismatch if there are too few or too many."""
    gated, biased = bool(attrs["gated"]), bool(attrs["biased"])
    matrices = 3 if gated else 2
    if len(operands) != 3 + matrices * (2 if biased else 1):
        raise TypeMismatch(
            f"nn.experts: with gated = {gated} and biased = {biased} it takes "
            f"{3 + matrices * (2 if biased else 1)} operands, found {len(operands)}"
        )
    x, indices, weights, *rest = operands
    parts: list[T | None] = [*rest]
    if not gated:
        parts = [None, *parts[:2], None, *parts[2:]]
    return ExpertOperands(x, indices, weights, *parts)  # type: ignore[arg-type]


def distinct_experts(experts: int, chosen: int, rows: Size) -> Size:
    """Symbol for the expected number of distinct experts that the rows of a step choose.

    `X_128_8` for 8 of 128: 128 * (1 - (1 - 8 / 128) ** T), for T rows that choose independently
    and evenly. A constant number of rows gives the number itself.
    """
    if isinstance(rows, int):
        return expected_experts(experts, chosen, rows)
    return sym(f"X_{experts}_{chosen}")


def expected_experts(experts: int, chosen: int, rows: int) -> int:
    """The formula of `distinct_experts`, rounded."""
    return round(experts * (1 - (1 - chosen / experts) ** rows))


def _infer(types: Sequence[Type], attrs: Attrs) -> tuple[Type, ...]:
    dims, named = Dims("nn.experts"), expert_operands(types, attrs)
    x = dims.match("x", named.x, "..", "H")
    indices = dims.match("indices", named.indices, "..", "K")
    weights = dims.match("weights", named.weights, "..", "K")
    for name in ("gate", "up"):
        if getattr(named, name) is not None:
            dims.match(name, getattr(named, name), "E", "I", "H")
    dims.match("down", named.down, "E", "H", "I")
    for name, size in (("gate_bias", "I"), ("up_bias", "I"), ("down_bias", "H")):
        if getattr(named, name) is not None:
            dims.match(name, getattr(named, name), "E", size)
    if indices.dtype not in ("i32", "i64") or {x.dtype, weights.dtype} - {"f32", "f64"}:
        raise TypeMismatch(
            f"nn.experts: needs x and weights of f32 and integer indices, found {x}, {weights} and "
            f"{indices}"
        )
    return (x,)


def gated_activation(
    gate: np.ndarray | None, up: np.ndarray, activation: str, limit: float | None, alpha: float,
    offset: float,
) -> np.ndarray:  # fmt: skip
    """What stands between the two products of an expert."""
    if gate is None:
        return EXPERT_ACTIVATIONS[activation](up)
    if limit is not None:
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    if activation == "silu":
        active = gate * sigmoid(gate * gate.dtype.type(alpha))
    else:
        active = EXPERT_ACTIVATIONS[activation](gate)
    y: np.ndarray = active * (up + up.dtype.type(offset))
    return y


def _experts(
    *operands: np.ndarray, activation: str, gated: bool, biased: bool, limit: float | None,
    alpha: float, offset: float,
) -> np.ndarray:  # fmt: skip
    given = expert_operands(operands, {"gated": gated, "biased": biased})
    width, chosen = given.x.shape[-1], given.indices.shape[-1]
    x, indices = given.x.reshape(-1, width), given.indices.reshape(-1, chosen)
    weights = given.weights.reshape(-1, chosen)
    out = np.zeros_like(x)
    for expert in range(given.down.shape[0]):
        rows, places = np.nonzero(indices == expert)
        if not rows.size:
            continue
        gate = None
        if given.gate is not None:
            gate = _product(x[rows], given.gate, given.gate_bias, expert)
        up = _product(x[rows], given.up, given.up_bias, expert)
        joined = gated_activation(gate, up, activation, limit, alpha, offset)
        y = _product(joined, given.down, given.down_bias, expert)
        np.add.at(out, rows, y * weights[rows, places, None])
    return out.reshape(given.x.shape)


def _product(
    x: np.ndarray, matrices: np.ndarray, biases: np.ndarray | None, expert: int
) -> np.ndarray:
    y: np.ndarray = x @ matrices[expert].astype(x.dtype).T
    return y if biases is None else y + biases[expert].astype(x.dtype)


def _choices(types: Sequence[Type], attrs: Attrs) -> tuple[int, int, Size]:
    """Experts, experts chosen by a row, rows."""
    named = expert_operands(types, attrs)
    indices, down = named.indices, named.down
    assert isinstance(indices, TensorType) and isinstance(down, TensorType)
    experts, chosen = down.shape[0], indices.shape[-1]
    assert isinstance(experts, int) and isinstance(chosen, int)
    return experts, chosen, product(indices.shape[:-1])


def _flops(types: Sequence[Type], attrs: Attrs) -> Size:
    named = expert_operands(types, attrs)
    _, chosen, rows = _choices(types, attrs)
    assert isinstance(named.down, TensorType)
    hidden, inner = named.down.shape[1:]
    return rows * chosen * (hidden * inner * (6 if attrs["gated"] else 4) + inner * 13 + hidden * 2)


def _reads(types: Sequence[Type], attrs: Attrs) -> tuple[Size, ...]:
    """Rows once; of the parameters the experts that are expected to be chosen."""
    experts, chosen, rows = _choices(types, attrs)
    touched = distinct_experts(experts, chosen, rows)
    tensors = [t for t in types if isinstance(t, TensorType)]
    return (
        *(t.nbytes for t in tensors[:3]),
        *(t.with_shape(t.shape[1:]).nbytes * touched for t in tensors[3:]),
    )


def _types(gated: bool, biased: bool, dtype: str = "f32") -> tuple[TensorType, ...]:
    hidden, inner, experts = (32, 64, 5) if dtype != "f32" else (8, 6, 5)
    into, out = (experts, inner, hidden), (experts, hidden, inner)
    matrices = [TensorType(s, dtype) for s in ((into, into, out) if gated else (into, out))]
    biases = [TensorType(m.shape[:2], "f32") for m in matrices] if biased else []
    rows = (2, 3)
    return (
        TensorType((*rows, hidden), "f32"), TensorType((*rows, 2), "i64"),
        TensorType((*rows, 2), "f32"), *matrices, *biases,
    )  # fmt: skip


_CHOSEN = {1: (0, 3, 3, 4, 1, 0, 0, 3, 4, 3, 3, 1)}  # nobody chooses expert 2
_PLAIN: dict[str, AttrValue] = {"activation": "silu", "gated": True, "biased": False}
_CLAMPED: dict[str, AttrValue] = {"activation": "silu", "limit": 0.7, "alpha": 1.702, "offset": 1.0}
register(
    Card(
        "nn.experts",
        "Sum over the K experts of a row of weight * down(act(gate(x)) * up(x)). With a limit L, "
        "gate is at most L and up within -L and L; silu is x * sigmoid(alpha * x); offset is added "
        "to up. Operands after the weights: gate (if gated), up, down, then their biases (if "
        "biased). Indices outside 0 .. E - 1 choose nothing. Bytes of the parameters: those of "
        "the distinct experts expected for T rows, X_E_K = E * (1 - (1 - K / E) ** T).",
        ("x: [.., H]", "indices: [.., K]", "weights: [.., K]", "*w: [E, ..]"),
        _infer,
        _experts,
        attrs=(
            Attr("activation", (str,), choices=tuple(EXPERT_ACTIVATIONS)),
            Attr("gated", (bool,), False, True),
            Attr("biased", (bool,), False, False),
            Attr("limit", (float,), False),
            Attr("alpha", (float,), False, 1.0),
            Attr("offset", (float,), False, 0.0),
        ),
        flops=_flops,
        reads=_reads,
        samples=(
            Sample(_types(True, False), _PLAIN, _CHOSEN),
            Sample(_types(True, True), _CLAMPED | {"gated": True, "biased": True}, _CHOSEN),
            Sample(
                _types(False, False), {"activation": "relu2", "gated": False, "biased": False},
                _CHOSEN,
            ),
            Sample(_types(True, False, "q8_0"), _PLAIN | {"activation": "gelu_tanh"}, _CHOSEN),
        ),
        refused=(
            BadSample(_types(True, False), _PLAIN | {"gated": False}, "takes 5 operands, found 6"),
            BadSample(
                (*_types(True, False)[:4], _types(True, False)[5], _types(True, False)[5]), _PLAIN,
                "dim I is 6",
            ),
            BadSample(
                (_types(True, False)[0], TensorType((2, 3, 2), "f32"), *_types(True, False)[2:]),
                _PLAIN, "integer indices",
            ),
        ),
    )
)  # fmt: skip
