"""Entry of the capture process: `python -m inferc.frontend.capture_child FOLDER < request.json`.

Writes the graph and the facts into the folder. On failure it writes `error.json` with one paragraph
that names the module in which transformers or torch stopped, and exits with 1.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from types import TracebackType

from inferc.errors import CompileError
from inferc.frontend.capture import ERROR_FILE, FACTS_FILE, GRAPH_FILE
from inferc.frontend.capture_request import CaptureRequest

_CAUSE_CHARACTERS = 400  # errors of torch.export run over pages


def main() -> None:
    """Capture one request."""
    folder = Path(sys.argv[1])
    sys.excepthook = _Report(folder)
    request = CaptureRequest.from_json(sys.stdin.read())
    from inferc.frontend import capture_torch  # after the hook: its imports may fail as well

    text, facts = capture_torch.capture(request)
    (folder / GRAPH_FILE).write_text(text, encoding="utf-8")
    (folder / FACTS_FILE).write_text(facts.to_json(), encoding="utf-8")


class _Report:
    """Exception hook: whatever stops the capture becomes one paragraph for the user."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Write the message; the traceback goes to stderr, for those who run the child by hand."""
        traceback.print_exception(kind, error, trace)
        message = describe(error)
        (self.folder / ERROR_FILE).write_text(json.dumps({"message": message}), encoding="utf-8")


def describe(error: BaseException) -> str:
    """One paragraph: what stopped the capture, in which module, with the cause shortened."""
    where = _active_module()
    refused = _refusal(error)
    if refused is not None:
        return f"The model cannot be captured{where}: {refused}"
    text = " ".join(str(error).split())
    cause = f"{type(error).__name__}: {text[:_CAUSE_CHARACTERS]}"
    if not where:
        return f"transformers cannot build a model from this config.json. {cause}"
    return f"torch.export cannot capture this model{where}. {cause}"


def _refusal(error: BaseException | None) -> CompileError | None:
    """Our own error, also where torch has wrapped it."""
    while error is not None:
        if isinstance(error, CompileError):
            return error
        error = error.__cause__ or error.__context__
    return None


def _active_module() -> str:
    module = sys.modules.get("inferc.frontend.capture_model")
    stack = module.ACTIVE.stack if module is not None else []
    if not stack:
        return ""
    path, cls = stack[-1]
    return f" (in {path}, {cls})" if path else f" (in {cls})"


if __name__ == "__main__":
    main()
