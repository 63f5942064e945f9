"""The process behind `reference` for ONNX models: `python -m inferc.reference_onnx FOLDER`.

Runs the source file by ONNX Runtime, which shares nothing with the compiler. Like
`reference_child` it reads the request from stdin and writes `logits-<i>.npy` and `reference.json`,
or `error.json`. A merged cache gets a past of no tokens, the attention mask is all ones.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from inferc.errors import InfercError
from inferc.frontend.importer import model_path
from inferc.frontend.onnx_proto import open_onnx
from inferc.frontend.onnx_source import config_beside
from inferc.reference import RESULT_FILE, ReferenceRequest
from inferc.reference_error import ErrorFile

_TYPES = {
    "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(float)": np.float32,
    "tensor(float16)": np.float16, "tensor(bool)": np.bool_,
}  # fmt: skip


_FOLDER_OF_WEIGHTS = "session.model_external_initializers_file_folder_path"
_ROUNDED = "accuracy_level"  # of MatMulNBits: above 1, activations are rounded to less than float32


def main() -> None:
    """Answer one request."""
    folder = Path(sys.argv[1])
    sys.excepthook = ErrorFile(folder, "ONNX Runtime")
    request = ReferenceRequest.from_json(sys.stdin.read())
    model = Model(model_path(Path(request.source)))
    for i, prompt in enumerate(request.prompts):
        np.save(folder / f"logits-{i}.npy", model.logits(prompt))
    greedy, margins = decode(model, request)
    result = {
        "greedy": greedy,
        "margins": margins,
        "loader": "onnxruntime",
        "notes": [] if request.precision == "float32" else ["ONNX Runtime runs the file as it is."],
        "versions": {"onnxruntime": onnxruntime.__version__},
    }
    (folder / RESULT_FILE).write_text(json.dumps(result), encoding="utf-8")


def _exact(path: Path) -> str | bytes:
    """The model's path; its bytes with products in float32 where the file asks for less."""
    if all(level.i in (0, 1) for level in _levels(open_onnx(path).model)):
        return str(path)
    model = onnx.load(path, load_external_data=False)
    for level in _levels(model):
        level.i = 1
    return bytes(model.SerializeToString())


def _levels(model: onnx.ModelProto) -> list[onnx.AttributeProto]:
    return [a for node in model.graph.node for a in node.attribute if a.name == _ROUNDED]


class Model:
    """A session that takes token ids."""

    def __init__(self, path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.add_session_config_entry(_FOLDER_OF_WEIGHTS, str(path.parent))
        self.session = onnxruntime.InferenceSession(
            _exact(path), options, providers=["CPUExecutionProvider"]
        )
        self.config = config_beside(path.parent)
        names = [o.name for o in self.session.get_outputs()]
        self.output = "logits" if "logits" in names else names[0]

    def logits(self, prompt: Sequence[int]) -> np.ndarray:
        """Logits of every position, `[tokens, vocabulary]`."""
        inputs = {i.name: self._input(i, prompt) for i in self.session.get_inputs()}
        found: np.ndarray = self.session.run([self.output], inputs)[0][0]
        return found.astype(np.float32)

    def _input(self, info: onnxruntime.NodeArg, prompt: Sequence[int]) -> np.ndarray:
        dtype = _TYPES.get(info.type)
        if dtype is None:
            raise InfercError(f"The input {info.name} is of type {info.type}, not known here.")
        if info.name in ("position_ids", "positions"):
            return np.arange(len(prompt), dtype=dtype)[None]
        if info.name == "attention_mask":
            return np.ones((1, len(prompt)), dtype)
        if info.name == "use_cache_branch":
            return np.zeros(1, dtype)
        if info.name == "num_logits_to_keep":
            return np.zeros((), dtype)
        if len(info.shape) == 4:  # a past of no tokens
            return np.zeros([self._past_size(i, s) for i, s in enumerate(info.shape)], dtype)
        return np.array([prompt], dtype)

    def _past_size(self, axis: int, size: int | str) -> int:
        """Sizes of a past of no tokens: one sequence; heads and their size as the files say."""
        if isinstance(size, int):
            return size
        if "sliding" in size:  # a ring of the window's size, with nothing in it
            return int(self.config.get("sliding_window") or 0)
        if "past" in size or axis not in (0, 3):
            return 0
        return 1 if axis == 0 else int(self.config.get("head_dim") or 0)


def decode(model: Model, request: ReferenceRequest) -> tuple[list[int], list[float]]:
    """The most likely continuation of the first prompt, and each token's lead in logits."""
    tokens, margins = list[int](), list[float]()
    prompt, forbidden = list(request.prompts[0]), list(request.forbidden_ids)
    for _ in range(request.greedy_tokens):
        last = model.logits([*prompt, *tokens])[-1]
        last[forbidden] = -np.inf
        second, best = np.sort(last)[-2:]
        tokens.append(int(last.argmax()))
        margins.append(float(best - second))
    return tokens, margins


if __name__ == "__main__":
    main()
