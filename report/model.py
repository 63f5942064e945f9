"""The join behind every view: the report with its cost formulas evaluated for one workload.

Formulas are sizes of `inferc.ir.dims` in the symbols of `inferc.ir.cost`. Nothing here is measured.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferc import report_file
from inferc.errors import ArtifactError
from inferc.ir.cost import Workload
from inferc.ir.dims import evaluate, parse_size
from inferc.report.machines import TENSOR, Machine

SCHEMA_VERSION = 1
_SHORT = re.compile(r"(?:[^.]+\.)?\d+$|[^.]+$")
Report = Mapping[str, Any]
_TABLES = {"model", "options", "target", "symbols", "phases", "passes", "kv", "memory", "weights"}


@dataclass(frozen=True)
class KernelCost:
    """One kernel of a phase under one workload, on one machine."""

    name: str
    kernel: str
    kind: str
    modules: tuple[str, ...]
    flops: int
    bytes_moved: int
    predicted_us: float
    bound: str

    @property
    def module_names(self) -> str:
        """The modules in short: last names, with the block's for a bare number (`layers.0`)."""
        return " ".join(dict.fromkeys(_SHORT.findall(path)[0] for path in self.modules))

    @property
    def intensity(self) -> float:
        """Flops a byte."""
        return self.flops / max(self.bytes_moved, 1)


@dataclass(frozen=True)
class Block:
    """Kernels of one block of the model; `paths` are the repeats folded into it."""

    paths: tuple[str, ...]
    kernels: tuple[KernelCost, ...]

    @property
    def title(self) -> str:
        """`model.layers.0 … model.layers.29 (x30)`."""
        if len(self.paths) == 1:
            return self.paths[0]
        return f"{self.paths[0]} … {self.paths[-1]} (x{len(self.paths)})"


@dataclass(frozen=True)
class Phase:
    """A phase under one workload."""

    name: str
    blocks: tuple[Block, ...]
    flops: int
    bytes_moved: int
    must_move_bytes: int
    predicted_us: float

    @property
    def traffic_ratio(self) -> float:
        """Bytes that the kernels move over bytes that must move."""
        return self.bytes_moved / max(self.must_move_bytes, 1)


def load(artifact: Path) -> Report:
    """Read the report of an artifact. Raises ArtifactError."""
    path = report_file.path_in(artifact)
    report: Report = report_file.read(artifact)
    version = report.get("schema_version") if isinstance(report, dict) else None
    if not isinstance(version, int):
        raise ArtifactError(f"{path}: damaged (no report); compile the model again")
    if version > SCHEMA_VERSION:
        raise ArtifactError(
            f"{path}: report schema {version} is newer than {SCHEMA_VERSION}, "
            "which this version reads; upgrade inferc"
        )
    missing = sorted(_TABLES - report.keys())
    if missing:
        raise ArtifactError(f"{path}: damaged ({', '.join(missing)} missing); compile again")
    return report


def size(formula: Any, workload: Workload) -> int:
    """Value of a formula, which may be an int already."""
    if isinstance(formula, int):
        return formula
    return evaluate(parse_size(str(formula)), workload.bindings())


def phase(report: Report, name: str, workload: Workload, machine: Machine) -> Phase:
    """Evaluate a phase."""
    data = report["phases"][name]
    kernels = kernel_costs(report, name, workload, machine)
    return Phase(
        name,
        tuple(fold(kernels)),
        sum(k.flops for k in kernels),
        sum(k.bytes_moved for k in kernels),
        size(data["must_move_bytes"], workload),
        sum(k.predicted_us for k in kernels),
    )


def kernel_costs(
    report: Report, name: str, workload: Workload, machine: Machine
) -> list[KernelCost]:
    """The kernels of a phase in the order in which a step calls them."""
    return [_kernel(k, workload, machine) for k in report["phases"][name]["kernels"]]


def _kernel(data: Mapping[str, Any], workload: Workload, machine: Machine) -> KernelCost:
    flops = size(data["flops"], workload)
    moved = size(data["bytes_read"], workload) + size(data["bytes_written"], workload)
    memory_us = moved / machine.bytes_per_second * 1e6
    # Reports of earlier versions do not name the arithmetic.
    compute_us = flops / machine.rate(data.get("arithmetic", TENSOR)) * 1e6
    return KernelCost(
        data["name"], data["kernel"], data["kind"], tuple(data["modules"]), flops, moved,
        max(memory_us, compute_us), "memory" if memory_us >= compute_us else "compute",
    )  # fmt: skip


_REPEATED = re.compile(r"^(.*?\.\d+)(?:\.|$)")


def block_of(kernel: KernelCost) -> str:
    """The repeated block that a kernel belongs to: the first module path with a layer number.

    A fused kernel may touch two layers (a residual add and the next norm): it belongs to the later,
    where its result is read.
    """
    paths = [m[1] for m in map(_REPEATED.match, kernel.modules) if m]
    return paths[-1] if paths else (kernel.modules[0] if kernel.modules else "(step)")


def fold(kernels: Sequence[KernelCost]) -> list[Block]:
    """Kernels by block in order; neighbouring blocks of equal kernels are folded into one."""
    runs: list[tuple[str, list[KernelCost]]] = []
    for kernel in kernels:
        path = block_of(kernel)
        if not runs or runs[-1][0] != path:
            runs.append((path, []))
        runs[-1][1].append(kernel)
    blocks: list[Block] = []
    for path, members in runs:
        if blocks and _alike(blocks[-1].kernels, members):
            blocks[-1] = Block((*blocks[-1].paths, path), blocks[-1].kernels)
        else:
            blocks.append(Block((path,), tuple(members)))
    return blocks


def _alike(a: Sequence[KernelCost], b: Sequence[KernelCost]) -> bool:
    def key(k: KernelCost) -> tuple[str, int, int]:
        return (k.name, k.flops, k.bytes_moved)

    return [key(k) for k in a] == [key(k) for k in b]
