"""Gives every group the kernel that runs it.

    %y = fuse.group(%x, %w) {kind = "linear"} ...
  becomes
    %y = fuse.group(%x, %w) {kind = "linear", kernel = "linear"} ...

A group for which nothing fits is an error that lists every candidate with its reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, get_args

from inferc.codegen.group import Group
from inferc.codegen.kernel import Compute, KernelOptions, PrefillPrecision
from inferc.codegen.packing import INTEGERS
from inferc.codegen.registry import choose
from inferc.codegen.targets import parse_target
from inferc.errors import CompileError
from inferc.ir.core import Func, Module
from inferc.ir.types import TensorType
from inferc.passes.base import Pass, PassContext


@dataclass(frozen=True)
class SelectKernels(Pass):
    """Chooses kernels for a target."""

    name: ClassVar[str] = "select-kernels"
    requires: ClassVar[frozenset[str]] = frozenset({"fused", "kv-planned"})
    ensures: ClassVar[frozenset[str]] = frozenset({"selected"})

    target: str = "cpu:native"
    compute: str = "auto"
    tvm: bool = True
    fast_prefill: bool = False
    prefill_precision: str = "auto"

    def run(self, module: Module, context: PassContext) -> None:
        """Set the attribute `kernel` of every group."""
        options = self.options()
        self._refuse_idle_compute(module)
        for func in step_functions(module):
            rewriter = context.rewriter(func)
            for op in func.ops:
                if op.body is not None:
                    chosen = choose(Group(op, func), options)
                    rewriter.set_attrs(op, kernel=chosen.name)
                    context.hit(chosen.name, func)

    def _refuse_idle_compute(self, module: Module) -> None:
        """An arithmetic that no weight takes is refused: the artifact would silently be float32."""
        stored = {
            op.result.type.dtype
            for func in step_functions(module)
            for op in func.params().values()
            if isinstance(op.result.type, TensorType) and op.result.type.rank > 1
        }
        if self.options().target.kind == "cuda":
            return  # an activation is rounded to bf16 whatever the weights are
        integers = (set(INTEGERS), "block-quantised weights of integers and i8 weights")
        served = {
            "int16": integers,
            "int8": integers,
            "bf16": ({"bf16"}, "bf16 weights"),
        }
        for name in ("compute", "prefill_precision"):
            chosen = getattr(self, name)
            if chosen not in served:
                continue
            types, kinds = served[chosen]
            if not stored & types:
                raise CompileError(
                    f"{name}={chosen} is for {kinds}; this model's matrices are stored as "
                    f"{', '.join(sorted(stored))}. Leave {name} at auto, or convert it first."
                )

    def options(self) -> KernelOptions:
        """The options as the kernel definitions take them. Raises CompileError."""
        if self.compute not in get_args(Compute):
            raise CompileError(
                f"Unknown compute mode '{self.compute}'. Known: {', '.join(get_args(Compute))}."
            )
        if self.compute in ("int16", "int8") and self.target.startswith("cuda:"):
            raise CompileError(
                f"compute={self.compute} is not there for CUDA targets: integers are multiplied as"
                " bf16, exactly. Leave compute at auto, or take f32."
            )
        if self.prefill_precision not in get_args(PrefillPrecision):
            raise CompileError(
                f"Unknown prefill precision '{self.prefill_precision}'."
                f" Known: {', '.join(get_args(PrefillPrecision))}."
            )
        target = parse_target(self.target)
        if self.prefill_precision != "auto" and target.kind == "cuda":
            raise CompileError(
                "prefill_precision is for CPU targets; on GPUs `compute` says how activations are"
                " rounded. Leave it out."
            )
        if self.fast_prefill and target.kind != "cuda":
            raise CompileError(
                f"fast_prefill is for CUDA targets; on {target.name} prefill has one order of sums."
                " Leave it out."
            )
        return KernelOptions(
            target,
            self.compute,  # type: ignore[arg-type]
            self.tvm,
            self.fast_prefill,
            self.prefill_precision,  # type: ignore[arg-type]
        )


def step_functions(module: Module) -> list[Func]:
    """The functions that run a step."""
    return [module.funcs[name] for name in ("prefill", "decode") if name in module.funcs]
