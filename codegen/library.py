"""From a planned module to the files of a target: sources, step library, what the weights are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from inferc.codegen.build import Progress, Source, build_library
from inferc.codegen.cache import Cache
from inferc.codegen.cuda_build import build_cuda_library
from inferc.codegen.cuda_step import SAMPLING_UNIT, cuda_step, sampling_code
from inferc.codegen.cuda_toolchain import CudaCompiler
from inferc.codegen.group import Group
from inferc.codegen.kernel import KernelOptions
from inferc.codegen.pack_weights import PackPlan, plan_weights
from inferc.codegen.render import comment, render
from inferc.codegen.select import step_functions
from inferc.codegen.step import StepParams, plan_step
from inferc.codegen.targets import CudaTarget
from inferc.codegen.toolchain import Compiler
from inferc.codegen.units import Unit, Units
from inferc.ir.core import Module, Op
from inferc.passes.plan_memory import MemoryPlan, memory_plan

STEP_FILE = "step.cpp"
LIBRARY_FILE = "step.so"


@dataclass(frozen=True)
class Generated:
    """Everything that code generation decided for one module."""

    options: KernelOptions
    units: Units
    weights: PackPlan
    step: StepParams
    memory: MemoryPlan

    def unit_of(self, op: Op) -> Unit:
        """The kernel that runs a group."""
        return self.units.unit_of(op)

    def sources(self) -> list[Source]:
        """All C++ files, the kernels in order of first use, the step last."""
        sources = [Source(u.file_name, u.source(), u.code) for u in self.units.by_name.values()]
        if self.options.target.kind == "cuda":
            code = sampling_code()
            header = comment("Logits to tokens: the same for every model.") + "\n"
            sources.append(Source(f"{SAMPLING_UNIT}.cu", header + code, code))
        code = self._step_code()
        calls = ", ".join(f"{len(p.calls)} calls in {p.name}" for p in self.step.phases)
        text = comment(f"The step functions: {calls}.") + "\n" + code
        return [*sources, Source(STEP_FILE, text, code)]

    def _step_code(self) -> str:
        if self.options.target.kind == "cuda":
            return render("cuda_step.cpp.j2", cuda_step(self.step, self.units))
        return render("step.cpp.j2", self.step)

    def row_functions(self) -> list[tuple[str, str]]:
        """Names and bodies of what TVM lowers."""
        return [
            (u.lowered_name, u.lowered_text)
            for u in self.units.by_name.values()
            if u.lowered_name is not None and u.lowered_text is not None
        ]


def generate(module: Module, options: KernelOptions) -> Generated:
    """Plan the code of a module whose kernels and offsets have been chosen."""
    units = Units(options)
    functions = step_functions(module)
    for func in functions:
        for op in func.ops:
            if op.body is not None:
                units.add(Group(op, func))
    weights = plan_weights(units)
    step = plan_step(functions, units, weights)
    return Generated(options, units, weights, step, memory_plan(module))


def write_library(
    generated: Generated,
    folder: Path,
    compiler: Compiler,
    cache: Cache,
    progress: Progress,
    cuda_compiler: CudaCompiler | None = None,
) -> Mapping[str, Path]:
    """Write sources and the step library into a folder; returns their paths by name.

    A target of CUDA needs `cuda_compiler`; its cubins lie in a folder for each architecture.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sources = generated.sources()
    for source in sources:
        (folder / source.file_name).write_text(source.text, encoding="utf-8")
    target = generated.options.target
    if isinstance(target, CudaTarget):
        assert cuda_compiler is not None
        build_cuda_library(
            sources, folder, archs=[arch.name for arch in target.archs], compiler=compiler,
            cuda_compiler=cuda_compiler, cache=cache, progress=progress,
        )  # fmt: skip
    else:
        build_library(
            sources, generated.row_functions(), folder / LIBRARY_FILE, target=target,
            compiler=compiler, cache=cache, progress=progress,
        )  # fmt: skip
    return {path.name: path for path in sorted(folder.iterdir())}
