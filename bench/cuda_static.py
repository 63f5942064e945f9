"""Every CUDA kernel of declared models, on every architecture, read from its cubin: no GPU needed.

    python -m bench.cuda_static [MODEL ...] [--archs sm_90a ...]

Writes bench/results/cuda-static.json. One row a kernel and architecture: registers, local memory
(spills), shared memory, barriers, and machine instructions that tell what it is made of. For each
workload and two architectures: what a step launches and how it fills the GPU. Exits with 1 if the
gate of codegen/cuda_gate.py finds a fault or a launch would be refused; the faults are in the
results as well.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
    """Rows of a model's kernels, and its launches."""

    def __init__(self, compiler: CudaCompiler, archs: Sequence[str]) -> None:
        self.compiler = compiler
        self.archs = archs
        self.nvdisasm = find_disassembler()
        self.cache = Cache(default_root())
        self.facts: dict[tuple[str, str], KernelFacts] = {}  # by architecture and kernel
        self.faults: list[str] = []

    def read(self, name: str) -> dict[str, Any]:
        """Compile and read a model."""
        made = generated(name, "cuda:" + "+".join(self.archs), step_tokens=2048, fast_prefill=True)
        expected = {
            unit.name: Expected(
                unit.name, tuple(unit.name + suffix for suffix in unit.definition.kernels),
                unit.definition.instructions,
            )
            for unit in made.units.by_name.values()
        }  # fmt: skip
        kernels = tuple(kernel.name for kernel in SAMPLING_KERNELS)
        expected[SAMPLING_UNIT] = Expected(SAMPLING_UNIT, kernels, {})
        rows = self._rows(made, expected)
        launches = self._launches(made)
        return {
            "compiler": self.compiler.version,
            "faults": sorted(set(self.faults)),
            "units": {u.name: _what(u) for u in made.units.by_name.values()},
            "kernels": rows,
            "launches": launches,
        }

    def _rows(self, made: Generated, expected: Mapping[str, Expected]) -> dict[str, Any]:
        rows: dict[str, dict[str, Any]] = {}
        cubins = compile_cubins(made.sources(), self.archs, self.compiler, self.cache, _told)
        for path, cubin in cubins.items():
            arch, _, unit = path.partition("/")
            found = kernel_facts(cubin, arch, self.nvdisasm, self.cache)
            self.facts |= {(arch, name): facts for name, facts in found.items()}
            self.faults += faults([expected[unit]], arch, found, cubin.messages)
            for name, facts in found.items():
                rows.setdefault(name, {})[arch] = _row(facts)
        return rows

    def _launches(self, made: Generated) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="cuda-static-") as folder:
            build_cuda_library(
                made.sources(), Path(folder), archs=[], compiler=find_compiler(),
                cuda_compiler=self.compiler, cache=self.cache, progress=_told,
            )  # fmt: skip
            library = CudaStepLibrary(Path(folder) / "step.so")
        result: dict[str, Any] = {"scratch_bytes": library.scratch_bytes}
        for workload in WORKLOADS:
            for gpu in (gpu for gpu in GPUS if gpu.arch in self.archs):
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


def record_model(name: str, result: dict[str, Any]) -> None:
    """Put a model's results among those of earlier runs."""
    results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    results[name] = result
    RESULTS.write_text(_text({n: results[n] for n in MODELS if n in results}) + "\n")


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
    parser.add_argument("--archs", nargs="+", choices=ARCHS, default=list(ARCHS))
    args = parser.parse_args()
    found = 0
    for name in args.names:
        result = Table(find_cuda_compiler(args.archs), args.archs).read(name)
        record_model(name, result)
        found += len(result["faults"])
        kernels = len(result["kernels"])
        print("\n".join([f"{name}: {kernels} kernels", *result["faults"]]), flush=True)
    return found > 0


if __name__ == "__main__":
    raise SystemExit(main())
