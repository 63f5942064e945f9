"""How a reference process tells its parent what stopped it."""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from types import TracebackType

from inferc.errors import InfercError
from inferc.reference import ERROR_FILE

_CAUSE_CHARACTERS = 400


class ErrorFile:
    """Exception hook: whatever stops the reference becomes one paragraph in `error.json`."""

    def __init__(self, folder: Path, engine: str) -> None:
        self.folder, self.engine = folder, engine

    def __call__(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Write the message; the traceback goes to stderr, for those who run the child by hand."""
        traceback.print_exception(kind, error, trace)
        text = " ".join(str(error).split())[:_CAUSE_CHARACTERS]
        message = (
            text
            if isinstance(error, InfercError)
            else f"{self.engine} cannot run the source model. {kind.__name__}: {text}"
        )
        (self.folder / ERROR_FILE).write_text(json.dumps({"message": message}), encoding="utf-8")
