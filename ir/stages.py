"""Which ops may occur at which stage of the pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from inferc.errors import CompileError
from inferc.ir.card import CARDS
from inferc.ir.core import Func, Module, Op
from inferc.ir.ops.recurrent import WHOLE
from inferc.ir.problem import Problem

_CORE = frozenset(name for name in CARDS if name.startswith("core.")) | {"param"}
_NN = frozenset(name for name in CARDS if name.startswith("nn."))
_SERVE = frozenset(name for name in CARDS if name.startswith("serve."))
_VIEWS = frozenset({"param", "core.reshape", "fuse.group"})


@dataclass(frozen=True)
class Stage:
    """A legality set. `kernels` and `offsets`: groups must carry that attribute."""

    name: str
    summary: str
    ops: frozenset[str]
    kernels: bool = False
    offsets: bool = False


STAGES = {
    stage.name: stage
    for stage in (
        Stage(
            "tensor",
            "As captured: core ops, and the nn ops that a frontend keeps whole.",
            _CORE
            | {"nn.attention", "nn.mask", "nn.layer_norm", "nn.rms_norm", "nn.experts"}
            | set(WHOLE),
        ),
        Stage("nn", "Patterns raised; still one plain function.", _CORE | _NN - {"nn.mask"}),
        Stage(
            "serve",
            "Flattened to tokens; state is a value.",
            _CORE | _SERVE | _NN - {"nn.mask", "nn.attention", *WHOLE},
        ),
        Stage("fused", "A short list of groups; reshapes are views.", _VIEWS),
        Stage("planned", "Kernels and arena offsets are chosen.", _VIEWS, True, True),
    )
}


def is_pack(func: Func) -> bool:
    """Whether a function computes a packed weight; it stays at core ops at every stage."""
    return func.name.startswith("pack/")


def stage_problems(module: Module, stage: str) -> Iterator[Problem]:
    """Ops that the stage does not allow. Raises CompileError for an unknown stage."""
    if stage not in STAGES:
        raise CompileError(f"There is no stage {stage!r}; stages: {', '.join(STAGES)}.")
    rules = STAGES[stage]
    for func in module:
        allowed = _CORE if is_pack(func) else rules.ops
        for op in func.ops:
            if op.name not in allowed:
                message = f"{op.name} may not occur at stage {stage} ({rules.summary})"
                yield Problem("stage", message, func, op)
            elif op.body is not None:
                yield from _group_problems(func, op, rules)


def _group_problems(func: Func, op: Op, rules: Stage) -> Iterator[Problem]:
    legal_inside = STAGES["serve"].ops
    for inner in op.body.ops if op.body is not None else ():
        if inner.name not in legal_inside:
            message = f"{inner.name} may not occur in a group"
            yield Problem("stage", message, func, op)
    if rules.kernels and not op.attrs["kernel"]:
        yield Problem("stage", f"at stage {rules.name} a group names its kernel", func, op)
    if rules.offsets and not op.attrs["offsets"]:
        yield Problem("stage", f"at stage {rules.name} a group has arena offsets", func, op)
