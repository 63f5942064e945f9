"""Spells compound ops of a group's body out in core ops, for kernels that know only these."""

from __future__ import annotations

from collections.abc import Callable

from inferc.ir.core import Builder, Func, Op, Value
from inferc.ir.types import TensorType


class _Local:
    """Appends core ops at the location of the op that is being spelled out."""

    def __init__(self, builder: Builder, op: Op) -> None:
        self.builder, self.op = builder, op

    def __call__(self, name: str, *operands: Value, **attrs: object) -> Value:
        return self.builder.op(f"core.{name}", *operands, loc=self.op.loc, **attrs)  # type: ignore[arg-type]

    def constant(self, value: float) -> Value:
        return self.builder.constant(value, "f32", loc=self.op.loc)

    def mean(self, x: Value) -> Value:
        assert isinstance(x.type, TensorType)
        return self("mean", x, axes=(x.type.rank - 1,), keepdim=True)

    def widened(self, x: Value) -> Value:
        """A stored parameter as float32."""
        assert isinstance(x.type, TensorType)
        return x if x.type.dtype == "f32" else self("cast", x, dtype="f32")


def decompose(body: Func) -> Func:
    """A copy of a body in which norms, softmax and gated activations are core ops."""
    out = Func(body.name, dict(body.symbols))
    values = {a: out.add_arg(a.hint, a.type) for a in body.args}
    builder = Builder(out)
    for op in body.ops:
        operands = [values[v] for v in op.operands]
        spell = _SPELLINGS.get(op.name)
        if spell is not None:
            values[op.result] = spell(_Local(builder, op), operands, op)
            continue
        made = Op(
            op.card, operands, op.attrs, loc=op.loc, hints=[r.hint for r in op.results],
            result_types=[r.type for r in op.results],
        )  # fmt: skip
        out.ops.append(made)
        values.update(zip(op.results, made.results, strict=True))
    out.results = [values[r] for r in body.results]
    return out


def _rms_norm(b: _Local, operands: list[Value], op: Op) -> Value:
    x = operands[0]
    scale = b("rsqrt", b("add", b.mean(b("square", x)), b.constant(float(op.attrs["eps"]))))  # type: ignore[arg-type]
    y = b("mul", x, scale)
    return y if len(operands) == 1 else b("mul", y, b.widened(operands[1]))


def _layer_norm(b: _Local, operands: list[Value], op: Op) -> Value:
    centred = b("sub", operands[0], b.mean(operands[0]))
    variance = b.mean(b("square", centred))
    y = b("mul", centred, b("rsqrt", b("add", variance, b.constant(float(op.attrs["eps"])))))  # type: ignore[arg-type]
    if len(operands) > 1:
        y = b("mul", y, b.widened(operands[1]))
    return y if len(operands) < 3 else b("add", y, b.widened(operands[2]))


def _softmax(b: _Local, operands: list[Value], op: Op) -> Value:
    x, axes = operands[0], (op.attrs["axis"],)
    e = b("exp", b("sub", x, b("amax", x, axes=axes, keepdim=True)))
    return b("div", e, b("sum", e, axes=axes, keepdim=True))


def _glu(b: _Local, operands: list[Value], op: Op) -> Value:
    gate, up = operands
    activation = str(op.attrs["activation"])
    if activation == "gelu_tanh":
        return b("mul", b("gelu", gate, approximate="tanh"), up)
    return b("mul", b(activation, gate), up)


_SPELLINGS: dict[str, Callable[[_Local, list[Value], Op], Value]] = {
    "nn.rms_norm": _rms_norm,
    "nn.layer_norm": _layer_norm,
    "core.softmax": _softmax,
    "nn.glu": _glu,
}
