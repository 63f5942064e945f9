"""The profile that `inferc bench --profile --save` keeps in an artifact, and reading it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inferc.errors import ArtifactError
from inferc.ir.cost import Workload
from inferc.report.machines import INTEGERS, PLAIN, Machine, uniform
from inferc.report.model import KernelCost
from inferc.report.profile import CallProfile, CallTimes, PhaseProfile

PROFILE_FILE = "profile.json"
SCHEMA_VERSION = 1
Profile = Mapping[str, Any]


def encode(result: Profile) -> bytes:
    """The file's content."""
    return (json.dumps({"schema_version": SCHEMA_VERSION, **result}, indent=1) + "\n").encode()


def load(artifact: Path) -> Profile | None:
    """The profile of an artifact, if it lists one. Raises ArtifactError for a damaged one."""
    if not _is_listed(artifact):
        return None
    path = artifact / PROFILE_FILE
    try:
        profile = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path}: damaged ({error}); profile the artifact again") from None
    version = profile.get("schema_version") if isinstance(profile, dict) else None
    if version != SCHEMA_VERSION or not isinstance(profile.get("profiles"), list):
        raise ArtifactError(
            f"{path}: expected profile schema {SCHEMA_VERSION}, found {version!r}; profile the"
            " artifact again"
        )
    return profile


def phases(profile: Profile) -> list[tuple[PhaseProfile, Machine]]:
    """What was measured, each with the machine's limits of the same run."""
    return [(_phase(entry), _machine(entry)) for entry in profile["profiles"]]


def _phase(entry: Mapping[str, Any]) -> PhaseProfile:
    return PhaseProfile(
        entry["phase"],
        Workload(entry["tokens"], entry["sequences"], entry["context_tokens"]),
        entry["workers"], entry["steps"], entry["step_us"], entry["library_us"],
        entry["start_us"], entry["end_wait_us"], entry["wait_share"], entry["predicted_us"],
        tuple(_call(call) for call in entry["calls"]),
    )  # fmt: skip


def _call(call: Mapping[str, Any]) -> CallProfile:
    cost = KernelCost(
        call["name"], call["kernel"], call["kind"], tuple(call["modules"]), call["flops"],
        call["bytes_moved"], call["predicted_us"], call["bound"],
    )  # fmt: skip
    times = CallTimes(call["elapsed_us"], call["slowest_us"], call["sum_us"], call["wait_us"])
    return CallProfile(cost, times, call["share"])


def limits(machine: Machine) -> dict[str, Any]:
    """A machine's limits as a profile has them; those of integers only where they were measured."""
    rates = {k: rate / 1e9 for k, rate in machine.flops_per_second.items() if k in INTEGERS}
    return {
        "read_gb_per_second": machine.bytes_per_second / 1e9,
        "gflops_per_second": machine.rate(PLAIN) / 1e9,
        "integer_gops_per_second": rates,
    }


def _machine(entry: Mapping[str, Any]) -> Machine:
    rates = (entry["read_gb_per_second"] * 1e9, entry["gflops_per_second"] * 1e9)
    integers = entry.get("integer_gops_per_second", {})  # earlier profiles have none
    return uniform("the machine measured", *rates, {k: v * 1e9 for k, v in integers.items()})


def _is_listed(artifact: Path) -> bool:
    """A file that the manifest does not list is what a stopped `--save` left."""
    try:
        files = json.loads((artifact / "manifest.json").read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return PROFILE_FILE in files
