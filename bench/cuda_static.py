"""Every CUDA kernel of declared models, on every architecture, read from its cubin: no GPU needed.

    python -m bench.cuda_static [MODEL ...]     writes bench/results/cuda-static.json

One row a kernel and architecture: registers, local memory (spills), shared memory, barriers, and
machine instructions that tell what it is made of. For each model, workload and two architectures:
what a step launches and how it fills the GPU. Exits with 1 if the gate of codegen/cuda_gate.py
finds a fault or a launch would be refused; the faults are in the results as well.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bench.cuda_launches import Gpu, Launch, Workload, fill, launch_faults, record
from bench.cuda_models import MODELS, generated
from inferc.codegen.cache import Cache, default_root
from inferc.codegen.cuda_build import build_cuda_library, compile_cubins
from inferc.codegen.cuda_gate import Expected, KernelFacts, faults, kernel_facts
from inferc.codegen.cuda_static import count_instruction, find_disassembler
from inferc.codegen.cuda_step import SAMPLING_KERNELS, SAMPLING_UNIT
from inferc.codegen.cuda_toolchain import CudaCompiler, find_cuda_compiler
from inferc.codegen.library import Generated
from inferc.codegen.targets.cuda import ARCHS
from inferc.codegen.toolchain import find_compiler
from inferc.runtime.executors.cuda_library import CudaStepLibrary

RESULTS = Path(__file__).parent / "results" / "cuda-static.json"
TARGET = "cuda:" + "+".join(ARCHS)
# Multiprocessors of one GPU of each architecture: A100, A10, L40S, H100 SXM, B200, RTX 5090.
GPUS = [
    Gpu(name, ARCHS[name].sm, count)
    for name, count in {
        "sm_80": 108, "sm_86": 72, "sm_89": 142, "sm_90a": 132, "sm_100a": 148, "sm_120a": 170,
    }.items()
]  # fmt: skip
SHOWN = ("sm_80", "sm_90a")
_LINE = 320  # columns of the results
WORKLOADS = (
    Workload("decode, 1 sequence, context 4096", 1, 1, 4096),
    Workload("decode, 64 sequences, context 4096", 64, 1, 4096),
    Workload("prefill, 1 sequence of 2048 tokens", 1, 2048, 2048),
)
# Matrix units, asynchronous copies, wide accesses, and what a spill is.
TELLING = (
    "HMMA", "HGMMA", "UTCHMMA", "LDGSTS", "UBLKCP", "UTMALDG", "LDSM", "LDG.128", "LDG.64", "LDG",
    "STG.128", "STG", "LDS", "STS", "BAR", "SYNCS", "LDL", "STL",
)  # fmt: skip


class Table:
    """Rows of kernels, and launches of models; a unit that models share has its rows once."""

    def __init__(self, compiler: CudaCompiler) -> None:
        self.compiler = compiler
        self.nvdisasm = find_disassembler()
        self.cache = Cache(default_root())
        self.facts: dict[tuple[str, str], KernelFacts] = {}  # by architecture and kernel
        self.kernels: dict[str, dict[str, Any]] = {}
        self.models: dict[str, Any] = {}
        self.faults: list[str] = []

    def add(self, name: str) -> None:
        """Compile and read a model."""
        made = generated(name, TARGET, step_tokens=2048)
        expected = {
            unit.name: Expected(
                unit.name, tuple(unit.name + suffix for suffix in unit.definition.kernels),
                unit.definition.instructions,
            )
            for unit in made.units.by_name.values()
        }  # fmt: skip
        kernels = tuple(kernel.name for kernel in SAMPLING_KERNELS)
        expected[SAMPLING_UNIT] = Expected(SAMPLING_UNIT, kernels, {})
        self._read(made, expected)
        self.models[name] = {
            "units": {u.name: _what(u) for u in made.units.by_name.values()},
            "launches": self._launches(made),
        }

    def _read(self, made: Generated, expected: Mapping[str, Expected]) -> None:
        sources, archs = made.sources(), list(ARCHS)
        cubins = compile_cubins(sources, archs, self.compiler, self.cache, _told)
        for path, cubin in cubins.items():
            arch, _, unit = path.partition("/")
            if (arch, expected[unit].kernels[0]) in self.facts:
                continue
            found = kernel_facts(cubin, arch, self.nvdisasm)
            self.facts |= {(arch, name): facts for name, facts in found.items()}
            self.faults += faults([expected[unit]], arch, found, cubin.messages)
            for name, facts in found.items():
                self.kernels[f"{name} {arch}"] = _row(facts)

    def _launches(self, made: Generated) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="cuda-static-") as folder:
            build_cuda_library(
                made.sources(), Path(folder), archs=[], compiler=find_compiler(),
                cuda_compiler=self.compiler, cache=self.cache, progress=_told,
            )  # fmt: skip
            library = CudaStepLibrary(Path(folder) / "step.so")
        result: dict[str, Any] = {"scratch_bytes": library.scratch_bytes}
        for workload in WORKLOADS:
            for gpu in GPUS:
                launches = record(library, made.step, workload, gpu)
                rows = self._summary(library, launches, gpu)
                if gpu.arch in SHOWN:
                    result.setdefault(workload.name, {})[gpu.arch] = rows
        return result

    def _summary(
        self, library: CudaStepLibrary, launches: Iterable[Launch], gpu: Gpu
    ) -> list[dict[str, Any]]:
        rows = []
        for launch, count in Counter(launches).items():
            name = library.kernels[launch.kernel].kernel
            facts = self.facts[gpu.arch, name]
            self.faults += launch_faults(launch, facts)
            shape = {"grid": launch.grid, "threads": launch.threads}
            shared = {"dynamic_shared_bytes": launch.shared_bytes, "cluster": launch.cluster}
            rows.append(
                {"kernel": name, "launches": count} | shape | shared | fill(launch, facts, gpu)
            )
        return rows

    def write(self) -> None:
        """Replace the results: a line a row."""
        compiler = {"compiler": self.compiler.version, "faults": sorted(set(self.faults))}
        table = compiler | {"models": self.models, "kernels": self.kernels}
        RESULTS.write_text(_text(table) + "\n")


def _what(unit: Any) -> str:
    group = unit.groups[0]
    return f"{unit.definition.name}: {', '.join(group.modules[:2]) or group.op.attrs['kind']}"


def _row(facts: KernelFacts) -> dict[str, Any]:
    kernel = facts.resources
    counts = {name: count_instruction(facts.instructions, name) for name in TELLING}
    return {
        "registers": kernel.registers,
        "local_bytes": kernel.local_bytes,
        "static_shared_bytes": kernel.shared_bytes,
        "barriers": kernel.barriers,
        "threads": kernel.threads,
        "instructions": sum(facts.instructions.values()),
    } | {name: count for name, count in counts.items() if count}


def _text(value: Any, indent: int = 0) -> str:
    """JSON with what fits a line on one."""
    flat = json.dumps(value)
    if len(flat) <= _LINE or not isinstance(value, dict | list):
        return flat
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    keys = [f"{json.dumps(key)}: " for key in value] if isinstance(value, dict) else None
    items = list(value.values()) if isinstance(value, dict) else value
    lines = [
        " " * (indent + 1) + (keys[i] if keys else "") + _text(item, indent + 1)
        for i, item in enumerate(items)
    ]
    return opening + "\n" + ",\n".join(lines) + "\n" + " " * indent + closing


def _told(what: str, done: int, total: int) -> None:
    print(f"\r{done}/{total} {what}\033[K", end="", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", metavar="MODEL", default=list(MODELS))
    table = Table(find_cuda_compiler())
    for name in parser.parse_args().names:
        table.add(name)
    table.write()
    print("\n".join(table.faults) or f"{len(table.kernels)} rows, no fault")
    return bool(table.faults)


if __name__ == "__main__":
    raise SystemExit(main())
