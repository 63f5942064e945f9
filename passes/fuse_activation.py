"""Let a matrix product apply the activation while its sums are in registers.

```
%g = core.linear(%h, %wg)                             %a = fuse.group(%h, %wg, %wu)
%u = core.linear(%h, %wu)                        ->     {kind = "glu_linear"} { the same }
%a = nn.glu(%g, %u) {activation = "silu"}
```

and `core.linear` followed by an activation becomes a group of kind "linear". Pays because gate and
up are never written (4 * I bytes a row each way). A pair whose weights have different stored types
cannot be packed side by side: refused, and the product then goes into the epilogue of one of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferc.ir.core import Module, Op, Value
from inferc.ir.types import TensorType
from inferc.passes.base import Pass, PassContext
from inferc.passes.fusion import Fuser, pointwise_like, sole_reader
from inferc.passes.rebuild import step_funcs

GLU, ACTIVATION = "glu-linear", "linear-activation"
_ACTIVATIONS = ("core.gelu", "core.silu", "core.relu", "core.sigmoid", "core.tanh")


@dataclass(frozen=True)
class FuseActivation(Pass):
    """Groups of kind glu_linear, and linear groups that end in or contain an activation."""

    name = "fuse-activation"
    requires = frozenset({"flat"})

    def run(self, module: Module, context: PassContext) -> None:
        """Rewrite the step functions."""
        for func in step_funcs(module):
            fuser = Fuser(func, context.rewriter(func), context)
            for op in fuser.ops():
                if op.name == "nn.glu":
                    _fuse_glu(fuser, op)
            for op in fuser.ops():
                reader = sole_reader(op.results[0], func) if op.name == "core.linear" else None
                if reader is not None and reader.name in _ACTIVATIONS:
                    members = fuser.grow([op], pointwise_like(op))
                    if len(members) > 1:
                        fuser.fuse(members, "linear", ACTIVATION)


def _fuse_glu(fuser: Fuser, glu: Op) -> None:
    gate, up = (v.producer for v in glu.operands)
    if gate is None or up is None or {gate.name, up.name} != {"core.linear"}:
        return
    reason = _refusal(fuser, gate, up)
    if reason is None:
        fuser.fuse({gate, up, glu}, "glu_linear", GLU)
    else:
        fuser.context.refuse(GLU, glu, reason)


def _refusal(fuser: Fuser, gate: Op, up: Op) -> str | None:
    if gate is up:
        return "gate and up are the same linear"
    if gate.operands[0] is not up.operands[0]:
        return "gate and up have different inputs"
    if any(sole_reader(op.result, fuser.func) is None for op in (gate, up)):
        return "gate or up is read elsewhere too"
    a, b = _type(gate.operands[1]), _type(up.operands[1])
    if a != b:
        return f"the weights of gate and up differ, {a} and {b}: they cannot be packed side by side"
    return None


def _type(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type
