"""Object files of row kernels: the parent's side of the TVM child process, and their cache."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache as once
from functools import partial
from pathlib import Path

from inferc.codegen.cache import Cache, digest, digest_files
from inferc.codegen.targets import CpuTarget
from inferc.codegen.tvm_child import ANNOUNCEMENT
from inferc.errors import ToolchainError
from inferc.runtime.host import host_machine

_HERE = Path(__file__).parent
_SOURCES = ("tvm_child.py", "tvm_lower.py", "tvm_math.py", "tvm_ops.py", "row_program.py")
_ERROR_LINES = 8


@dataclass(frozen=True)
class RowKey:
    """Everything that is baked into an object."""

    text: str
    name: str
    cpu: str
    features: tuple[str, ...]
    triple: str | None
    lanes: int
    tvm: str
    lowering: str


def tvm_installed() -> bool:
    """Whether TVM can be imported. Does not import it."""
    return importlib.util.find_spec("tvm") is not None


@once
def _versions() -> tuple[str, str]:
    lowering = digest_files([_HERE / name for name in _SOURCES])
    return importlib.metadata.version("apache-tvm"), lowering


def row_objects(
    functions: Sequence[tuple[str, str]], target: CpuTarget, cache: Cache
) -> dict[str, Path]:
    """Objects of `(name, text of the row body)`; those not cached are lowered in one child."""
    if not functions:
        return {}
    tvm, lowering = _versions()
    keys = {
        name: digest(
            RowKey(
                text, name, target.llvm_cpu, target.llvm_features, _triple(target),
                target.vector_lanes, tvm, lowering,
            )
        )
        for name, text in functions
    }  # fmt: skip
    missing = [(n, t) for n, t in functions if cache.find(keys[n], ".o") is None]
    if missing:
        with tempfile.TemporaryDirectory(prefix="inferc-tvm-") as folder:
            _lower(missing, target, Path(folder))
            for name, _ in missing:
                cache.store(keys[name], ".o", partial(_copy, Path(folder) / f"{name}.o"))
    return {name: cache.store(keys[name], ".o", _absent) for name, _ in functions}


def _triple(target: CpuTarget) -> str | None:
    """What LLVM calls another machine; None for this one, which it knows."""
    return None if target.machine == host_machine() else f"{target.machine}-linux-gnu"


def _copy(source: Path, path: Path) -> None:
    path.write_bytes(source.read_bytes())


def _absent(path: Path) -> None:
    raise OSError(2, f"{path.name} vanished from the cache")


def _lower(functions: Sequence[tuple[str, str]], target: CpuTarget, folder: Path) -> None:
    request = {
        "target": {
            "cpu": target.llvm_cpu,
            "features": [f"+{f}" for f in target.llvm_features],
            "triple": _triple(target),
            "lanes": target.vector_lanes,
        },
        "functions": [
            {"name": name, "ir": text, "output": str(folder / f"{name}.o")}
            for name, text in functions
        ],
    }
    done = subprocess.run(
        [sys.executable, "-m", "inferc.codegen.tvm_child"], input=json.dumps(request),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise ToolchainError(_failure(done, dict(functions)))


def _failure(done: subprocess.CompletedProcess[str], texts: dict[str, str]) -> str:
    begun = [line for line in done.stdout.splitlines() if line.startswith(ANNOUNCEMENT)]
    name = begun[-1].removeprefix(ANNOUNCEMENT) if begun else ""
    how = (
        f"crashed (signal {-done.returncode})" if done.returncode < 0 else "failed"
    )  # a negative code is a signal
    lines = "\n".join(done.stderr.strip().splitlines()[-_ERROR_LINES:])
    what = f" when lowering {name}:\n{texts[name]}" if name in texts else " before it began:\n"
    return (
        f"TVM {how}{what}\n{lines}\n"
        "Compile with --no-tvm to use plain C++ kernels, and please report this body."
    )
