"""Capture a model's plain forward graph from its config, without torch in this process.

torch and transformers run in a child process (`capture_child`), which writes IR text and facts.
The result is cached by everything it depends on: request, versions, and the capture code itself.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import inferc.ir
from inferc.errors import CompileError, ToolchainError
from inferc.frontend.capture_request import CaptureFacts, CaptureRequest
from inferc.ir.core import Module
from inferc.ir.ops import contract  # noqa: F401  (fills the table of ops before text is read)
from inferc.ir.parse import parse_module

GRAPH_FILE, FACTS_FILE, ERROR_FILE = "forward.ir", "facts.json", "error.json"
_TRANSFORMERS_RELEASE = "5.24"  # the interfaces that the hooks use are those of this release

_CHILD_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONHASHSEED": "0",  # transformers iterates over sets of layer types
}


@dataclass(frozen=True)
class Captured:
    """The function `@forward(ids, positions) -> logits` in float32, and facts for binding."""

    module: Module
    facts: CaptureFacts


def capture(request: CaptureRequest, cache_folder: Path | None = None) -> Captured:
    """Capture, or read an earlier capture of the same request.

    Raises:
        CompileError: The model cannot be captured; the message names the module and the operation.
        ToolchainError: torch or transformers is missing or of another release.
    """
    _check_packages()
    folder = cached_folder(request, cache_folder)
    if not (folder / FACTS_FILE).is_file():
        _run_child(request, folder)
    facts = CaptureFacts.from_json((folder / FACTS_FILE).read_text(encoding="utf-8"))
    return Captured(parse_module((folder / GRAPH_FILE).read_text(encoding="utf-8")), facts)


def cached_folder(request: CaptureRequest, cache_folder: Path | None = None) -> Path:
    """Where the capture of this request is, or will be."""
    return (cache_folder or default_cache_folder()) / "captures" / _digest(request)


def default_cache_folder() -> Path:
    """`$INFERC_CACHE`, or `inferc` in the user's cache folder."""
    named = os.environ.get("INFERC_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "inferc"


def _check_packages() -> None:
    missing = [p for p in ("torch", "transformers") if importlib.util.find_spec(p) is None]
    if missing:
        raise ToolchainError(
            f"Compiling needs {' and '.join(missing)}, which are not installed. Install the "
            "compiler's packages with: pip install 'inferc[compile]'"
        )
    found = importlib.metadata.version("transformers")
    if not found.startswith(f"{_TRANSFORMERS_RELEASE}."):
        raise ToolchainError(
            f"Compiling needs transformers {_TRANSFORMERS_RELEASE}, found {found}. Install the "
            "tested version with: pip install 'inferc[compile]'"
        )


def _digest(request: CaptureRequest) -> str:
    versions = [importlib.metadata.version(p) for p in ("torch", "transformers")]
    key = json.dumps([request.to_json(), versions, _code_digest()])
    return hashlib.sha256(key.encode()).hexdigest()[:32]


@cache
def _code_digest() -> str:
    """Digest of the code that a capture depends on: hooks, translation, op cards, text form."""
    here = Path(__file__).parent
    ir = Path(inferc.ir.__file__ or "").parent
    files = [*here.glob("capture*.py"), *here.glob("aten*.py"), *ir.glob("ops/*.py")]
    files += [ir / f"{name}.py" for name in ("core", "card", "types", "dims", "location", "text")]
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda f: (f.parent.name, f.name)):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def _run_child(request: CaptureRequest, folder: Path) -> None:
    """Run the child in a scratch folder, then rename: the cache never holds half a capture."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch_folder = tempfile.TemporaryDirectory(dir=folder.parent, prefix="partial-")
    except OSError as error:
        raise ToolchainError(
            f"Captures cannot be kept in {folder.parent} ({error.strerror}). Set INFERC_CACHE to a "
            "folder that can be written."
        ) from error
    with scratch_folder as scratch:
        work = Path(scratch) / "capture"
        work.mkdir()
        child = subprocess.run(
            [sys.executable, "-m", "inferc.frontend.capture_child", str(work)],
            input=request.to_json(),
            capture_output=True,
            text=True,
            env=os.environ | _CHILD_ENVIRONMENT,
            check=False,
        )
        if child.returncode != 0:
            raise _failure(work / ERROR_FILE, child)
        _publish(work, folder)


def _publish(work: Path, folder: Path) -> None:
    """Move a finished capture into the cache; a process that was faster has written the same."""
    try:
        work.rename(folder)
    except OSError:
        if not (folder / FACTS_FILE).is_file():
            raise


def _failure(error_file: Path, child: subprocess.CompletedProcess[str]) -> CompileError:
    if error_file.is_file():
        return CompileError(json.loads(error_file.read_text(encoding="utf-8"))["message"])
    last = (child.stderr.strip().splitlines() or ["no output"])[-1]
    how = f"signal {-child.returncode}" if child.returncode < 0 else f"code {child.returncode}"
    return CompileError(
        f"The process that captures the model ended by {how} before it could say why (out of "
        f"memory?). Its last line: {last}"
    )
