"""The ops that the hooks of recurrent cores put into the graph: tokens first, channels last."""

from __future__ import annotations

from inferc.frontend.aten_table import Emitter, aten, tensor, unsupported
from inferc.ir.core import Value

_CONV_ACTIVATIONS = {"none": "none", "silu": "silu", "swish": "silu"}
_SWAP = (0, 2, 1)


@aten("inferc.causal_conv1d.default")
def _conv(e: Emitter, x: Value, weight: Value, bias: Value | None, activation: str) -> Value:
    """From `[B, C, S]` to `[B, S, C]` and back; transposes of the model cancel against these."""
    if activation not in _CONV_ACTIVATIONS:
        raise unsupported(f"a causal convolution with activation {activation} is not supported.")
    operands = [e.transpose(x, _SWAP), e.transpose(weight, (1, 0))]
    operands += [] if bias is None else [bias]
    made = e.op("nn.causal_conv1d", *operands, activation=_CONV_ACTIVATIONS[activation])
    return e.transpose(made, _SWAP)


@aten("inferc.selective_scan.default")
def _selective_scan(e: Emitter, x: Value, dt: Value, a: Value, b: Value, c: Value) -> Value:
    rows = [e.transpose(v, _SWAP) for v in (x, dt, b, c)]
    return e.transpose(e.op("nn.selective_scan", *rows, e.transpose(a, (1, 0))), _SWAP)


@aten("inferc.ssd_scan.default")
def _ssd_scan(e: Emitter, x: Value, dt: Value, a: Value, b: Value, c: Value) -> Value:
    return e.op("nn.ssd_scan", x, dt, b, c, a)


@aten("inferc.gated_delta_rule.default")
def _delta_rule(e: Emitter, q: Value, k: Value, v: Value, g: Value, beta: Value) -> Value:
    return e.op("nn.gated_delta_rule", q, k, v, g, beta)


@aten("inferc.linear_scan.default")
def _linear_scan(e: Emitter, x: Value, gate: Value) -> Value:
    return e.op("nn.linear_scan", x, gate)


@aten("aten.conv1d.default", "aten.conv1d.padding")
def _plain_conv(
    e: Emitter,
    x: Value,
    weight: Value,
    bias: Value | None = None,
    stride: list[int] | int = 1,
    padding: list[int] | int | str = 0,
    dilation: list[int] | int = 1,
    groups: int = 1,
) -> Value:
    """Each channel alone, both ends padded: causal for the tokens and some zeros behind them."""
    channels, inputs, taps = tensor(weight).shape
    plain = _one(stride) == 1 and _one(dilation) == 1 and _one(padding) == taps - 1
    if not plain or inputs != 1 or groups != channels:
        raise unsupported(
            f"a convolution with weights {tensor(weight)}, groups {groups} and padding {padding} "
            "is not supported; known are convolutions of each channel with its last tokens."
        )
    rows = e.transpose(x, _SWAP)
    batch = tensor(rows).shape[0]
    behind = e.broadcast(e.scalar(0.0, tensor(x).dtype), (batch, taps - 1, channels))
    operands = [e.op("core.concat", rows, behind, axis=1) if taps > 1 else rows]
    operands.append(e.transpose(e.reshape(weight, (channels, taps)), (1, 0)))
    operands += [] if bias is None else [bias]
    return e.transpose(e.op("nn.causal_conv1d", *operands, activation="none"), _SWAP)


def _one(sizes: list[int] | int | str) -> int | str:
    return sizes[0] if isinstance(sizes, list) else sizes


@aten("aten.cumsum.default")
def _cumsum(e: Emitter, x: Value, axis: int, **_: object) -> Value:
    """A count of some tokens is a recurrence; exact up to 2 ** 24. Others are of masks."""
    shape = tensor(x).shape
    along_tokens = axis % len(shape) == 1 and shape == tensor(e.positions).shape
    if not along_tokens or not _reads_tokens(e, x):
        return e.op("core.cumsum", e.cast(x, e.result.dtype), axis=axis % len(shape))
    rows = e.reshape(e.cast(x, "f32"), (*shape, 1))
    kept = e.broadcast(e.scalar(1.0, "f32"), (*shape, 1))
    counts = e.reshape(e.op("nn.linear_scan", rows, kept), shape)
    return e.cast(counts, e.result.dtype)


def _reads_tokens(e: Emitter, x: Value) -> bool:
    """Whether a value is computed from anything but positions and constants."""
    stack, seen = [x], set[Value]()
    while stack:
        value = stack.pop()
        if value in seen or value is e.positions:
            continue
        seen.add(value)
        if value.producer is None:
            return True
        stack += value.producer.operands
    return False
