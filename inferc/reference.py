"""Reference logits: the source model run by transformers, eager attention, in a child process.

The child (`reference_child`) imports torch; this process does not. Only the weights and the config
are shared with the compiler; where transformers itself reads the file, not even those.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from inferc.errors import InfercError, ToolchainError
from inferc.frontend.importer import model_path

RESULT_FILE, ERROR_FILE = "reference.json", "error.json"
Precision = Literal["float32", "float64", "bfloat16"]


@dataclass(frozen=True)
class ReferenceRequest:
    """What to run.

    Attributes:
        source: A Hugging Face directory or a GGUF file.
        prompts: Token ids of each prompt; logits of all positions are computed.
        precision: Type of weights and activations.
        greedy_tokens: Tokens to append to the first prompt, each the most likely one.
        forbidden_ids: Ids that are never appended (padding of the vocabulary).
        context_tokens: Longest sequence of the artifact: decides which longrope factors apply.
    """

    source: str
    prompts: tuple[tuple[int, ...], ...]
    precision: Precision = "float32"
    greedy_tokens: int = 0
    forbidden_ids: tuple[int, ...] = ()
    context_tokens: int | None = None

    def to_json(self) -> str:
        """JSON for the child."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ReferenceRequest:
        """Read what `to_json` wrote."""
        data = json.loads(text)
        prompts = tuple(tuple(prompt) for prompt in data["prompts"])
        return cls(**data | {"prompts": prompts, "forbidden_ids": tuple(data["forbidden_ids"])})


@dataclass(frozen=True)
class Reference:
    """What transformers computed.

    Attributes:
        logits: `[tokens, vocab]` of each prompt, mapped from a file of the scratch folder.
        greedy: Tokens appended to the first prompt.
        margins: Lead of each of them over the second most likely, in logits.
        loader: Who read the source: `transformers`, or `inferc` for what transformers cannot read.
        notes: What the reader of a result should know about the reference.
        versions: Versions of the packages that computed it.
    """

    logits: tuple[npt.NDArray[np.floating], ...]
    greedy: tuple[int, ...]
    margins: tuple[float, ...]
    loader: str
    notes: tuple[str, ...]
    versions: Mapping[str, str]


@contextmanager
def reference(request: ReferenceRequest) -> Iterator[Reference]:
    """Run the source model; the logits live until the context ends.

    Raises:
        ToolchainError: torch or transformers is missing.
        InfercError: The source cannot be run by transformers; the message says why.
    """
    is_onnx = model_path(Path(request.source)).suffix == ".onnx"
    _check_packages(("onnxruntime",) if is_onnx else ("torch", "transformers"))
    scratch = Path(tempfile.mkdtemp(prefix="inferc-reference-"))
    try:
        data = _run_child("reference_onnx" if is_onnx else "reference_child", request, scratch)
        logits = tuple(
            np.load(scratch / f"logits-{i}.npy", mmap_mode="r") for i in range(len(request.prompts))
        )
        yield Reference(
            logits,
            tuple(data["greedy"]),
            tuple(data["margins"]),
            data["loader"],
            tuple(data["notes"]),
            data["versions"],
        )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _check_packages(packages: Sequence[str]) -> None:
    missing = [p for p in packages if importlib.util.find_spec(p) is None]
    if missing:
        extra = "onnx" if missing == ["onnxruntime"] else "compile"
        raise ToolchainError(
            f"The reference is computed by {' and '.join(missing)}, not installed here. Install"
            f" with: pip install 'inferc[{extra}]'"
        )


def _run_child(module: str, request: ReferenceRequest, scratch: Path) -> dict[str, Any]:
    child = subprocess.run(
        _command(module, scratch),
        input=request.to_json(),
        capture_output=True,
        text=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
        check=False,
    )
    if child.returncode != 0:
        raise InfercError(_failure(child, scratch / ERROR_FILE))
    result: dict[str, Any] = json.loads((scratch / RESULT_FILE).read_text(encoding="utf-8"))
    return result


def _command(module: str, scratch: Path) -> Sequence[str]:
    return [sys.executable, "-m", f"inferc.{module}", str(scratch)]


def _failure(child: subprocess.CompletedProcess[str], error_file: Path) -> str:
    if error_file.is_file():
        return str(json.loads(error_file.read_text(encoding="utf-8"))["message"])
    last = (child.stderr.strip().splitlines() or ["no output"])[-1]
    how = f"signal {-child.returncode}" if child.returncode < 0 else f"code {child.returncode}"
    return (
        f"The process that runs the reference model ended by {how} (out of memory? it holds the"
        f" model in float32). Its last line: {last}"
    )
