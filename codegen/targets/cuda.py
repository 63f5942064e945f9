"""CUDA targets: one or more GPU architectures, whose cubins go into one artifact."""

from __future__ import annotations

from dataclasses import dataclass

from inferc.errors import CompileError
from inferc.runtime.host import host_machine


@dataclass(frozen=True)
class CudaArch:
    """One GPU architecture.

    Attributes:
        name: as nvcc spells it; an `a` at the end allows what only that architecture has.
        sm: compute capability times ten.
        summary: which GPUs.
    """

    name: str
    sm: int
    summary: str

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability, major and minor."""
        return divmod(self.sm, 10)

    @property
    def is_specific(self) -> bool:
        """Whether code runs on this very capability only, not on later ones of the same major."""
        return self.name.endswith("a")


ARCHS = {
    arch.name: arch
    for arch in (
        CudaArch("sm_80", 80, "A100, A30"),
        CudaArch("sm_86", 86, "A10, A40, RTX 30"),
        CudaArch("sm_89", 89, "L4, L40, RTX 40"),
        CudaArch("sm_90a", 90, "H100, H200, GH200"),
        CudaArch("sm_100a", 100, "B200, GB200"),
        CudaArch("sm_120a", 120, "RTX 50, RTX PRO"),
    )
}


@dataclass(frozen=True)
class CudaTarget:
    """GPUs to compile for, and the machine that launches.

    Attributes:
        name: such as `cuda:sm_80+sm_90a`.
        machine: of the host library, in the manifest's spelling.
        archs: in ascending order; each gets a folder of cubins.
    """

    name: str
    machine: str
    archs: tuple[CudaArch, ...]
    kind: str = "cuda"
    isa: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """Folder of the target inside an artifact."""
        return "cuda"

    @property
    def has_bf16_dots(self) -> bool:
        """For kernels of the CPU; those of CUDA have their own choice of arithmetic."""
        return False

    @property
    def has_int16_dots(self) -> bool:
        """As has_bf16_dots."""
        return False

    def has(self, feature: str) -> bool:
        """No instruction set of a CPU."""
        return False


def parse_cuda_target(spec: str) -> CudaTarget:
    """The target of `cuda:sm_90a` or `cuda:sm_80+sm_90a`. Raises CompileError."""
    names = spec.partition(":")[2].split("+")
    for name in names:
        if name not in ARCHS:
            hint = f" Did you mean {name}a?" if f"{name}a" in ARCHS else ""
            raise CompileError(
                f"Target '{spec}': unknown architecture '{name}'. Known: {', '.join(ARCHS)};"
                f" several are joined by '+'.{hint}"
            )
    archs = tuple(sorted({ARCHS[name] for name in names}, key=lambda arch: arch.sm))
    return CudaTarget("cuda:" + "+".join(a.name for a in archs), host_machine(), archs)
