"""Which target of an artifact runs on a device of this machine, or why none does."""

import re
from dataclasses import dataclass

from inferc.errors import ArtifactError, RequestError
from inferc.runtime.artifact import (
    CUDA_ABI_VERSION,
    MANIFEST_NAME,
    READABLE_ABI_VERSIONS,
    Manifest,
    TargetEntry,
)
from inferc.runtime.host import features_are_known, host_machine, missing_features

_ABI_VERSIONS = {"cpu": READABLE_ABI_VERSIONS, "cuda": (CUDA_ABI_VERSION,)}


@dataclass(frozen=True)
class DeviceName:
    """Where a model runs: `cpu`, `cuda` (its first device) or `cuda:1`."""

    kind: str
    index: int = 0


def parse_device(spec: str) -> DeviceName:
    """The device of a spec. Raises RequestError."""
    match = re.fullmatch(r"(cpu|cuda)|cuda:(\d+)", spec) if isinstance(spec, str) else None
    if match is None:
        raise RequestError(f"device: expected cpu, cuda or cuda:N, found {spec!r}.")
    return DeviceName(match[1] or "cuda", int(match[2] or 0))


def first_device(manifest: Manifest) -> str:
    """The device that an artifact runs on if none is asked for: the kind of its first target."""
    return manifest.targets[0].kind if manifest.targets else "cpu"


@dataclass(frozen=True, order=True)
class Architecture:
    """An architecture of NVIDIA GPUs: `sm_86` is 8.6, `sm_90a` is 9.0 with what only 9.0 has."""

    major: int
    minor: int
    exact: bool = False

    @property
    def number(self) -> int:
        """As kernels see it: 86, 90."""
        return 10 * self.major + self.minor

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Whether machine code for it runs on a device of this compute capability.

        CUDA C++ Programming Guide, "Binary Compatibility" and "Feature Availability": code runs
        on the same major version with the same or a later minor; with suffix `a` on the same only.
        """
        if self.exact:
            return capability == (self.major, self.minor)
        return capability[0] == self.major and capability[1] >= self.minor


def architecture(target: TargetEntry) -> Architecture:
    """The architecture of a cuda target. Raises ArtifactError for one that cannot be read."""
    match = re.fullmatch(r"sm_(\d+)(\d)(a?)", target.arch or "")
    if match is None:
        raise ArtifactError(
            f"{MANIFEST_NAME}: target '{target.name}': arch: expected one such as sm_90a,"
            f" found {target.arch!r}."
        )
    return Architecture(int(match[1]), int(match[2]), bool(match[3]))


def select_target(
    manifest: Manifest, kind: str = "cpu", capability: tuple[int, int] | None = None
) -> TargetEntry:
    """The target of `kind` for this machine, or a refusal saying why there is none.

    Of cpu targets the first that runs: they are listed from the most to the least capable. Where
    the processor cannot be asked, the one that needs the fewest instruction sets.
    Of cuda targets the latest architecture that runs on a device of `capability`, else the first
    listed; without it (no device has been asked yet) any will do.
    """
    refusals = {target.name: _refusal(target, kind, capability) for target in manifest.targets}
    found = [target for target in manifest.targets if refusals[target.name] is None]
    if found and kind == "cuda":
        return max(found, key=architecture)
    if found:
        return found[0] if features_are_known() else min(found, key=lambda t: len(t.isa))
    if not refusals:
        raise ArtifactError(f"{MANIFEST_NAME}: the artifact holds no compiled target.")
    reasons = "; ".join(f"{name} {reason}" for name, reason in refusals.items())
    raise ArtifactError(
        f"The artifact cannot run on this machine: {reasons}."
        " Compile the model again here, or for a target this machine has"
        f"{_advice(manifest, kind, capability)}."
    )


def _refusal(target: TargetEntry, kind: str, capability: tuple[int, int] | None) -> str | None:
    if target.kind != kind:
        return f"is not a {kind} target"
    if target.machine != host_machine():
        return f"was compiled for {target.machine}, and this machine is {host_machine()}"
    missing = missing_features(target.isa)
    if missing:
        return f"needs the instruction sets {', '.join(missing)}, which this processor lacks"
    readable = _ABI_VERSIONS.get(kind, ())
    if target.abi_version not in readable:
        known = " and ".join(map(str, readable))
        return f"has step ABI {target.abi_version}, and this runtime speaks {known}"
    if capability is not None and not architecture(target).runs_on(capability):
        return f"does not run on a device of compute capability {capability[0]}.{capability[1]}"
    return None


def _advice(manifest: Manifest, kind: str, capability: tuple[int, int] | None) -> str:
    if capability is not None:
        return f", such as cuda:sm_{capability[0]}{capability[1]} (see `inferc targets`)"
    kinds = sorted({target.kind for target in manifest.targets} - {kind})
    return f"; it runs with device={kinds[0]!r}" if kinds else ""
