"""Typed access to the `<architecture>.*` metadata, which remembers what has been read.

Whatever nobody asked for is either known to change nothing, or an error: a key that changes the
maths must never be dropped in silence.
"""

from collections.abc import Iterable

import numpy as np

from inferc.errors import CompileError
from inferc.frontend.gguf_architectures import IRRELEVANT_KEYS, NEUTRAL_VALUES
from inferc.frontend.gguf_file import GgufFile
from inferc.frontend.gguf_header import Value
from inferc.frontend.weights import listed


class Keys:
    """The keys below one architecture's prefix."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self._prefix = f"{file.architecture}."
        self._read: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return self._prefix + key in self._file.metadata

    def raw(self, key: str) -> Value | None:
        """The value as stored, or None if the file does not have the key."""
        self._read.add(key)
        return self._file.metadata.get(self._prefix + key)

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer; per-layer lists are accepted if all layers agree."""
        value = self._scalar(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, value, "an integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number, in its shortest decimal form: a stored float32 0.1 means 0.1."""
        value = self._scalar(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, value, "a number")
        return float(str(np.float32(value)))

    def value(self, key: str, default: int | float | None = None) -> int | float:
        """An integer or a number, whichever is stored."""
        value = self._scalar(key, default)
        return self.integer(key) if isinstance(value, int) else self.number(key, default)

    def refuse_unread(self) -> None:
        """CompileError if keys are left that may change what the model computes."""
        unread = [
            f"{name} = {_shown(value)}"
            for name, value in self._file.metadata.items()
            if name.startswith(self._prefix)
            and (key := name[len(self._prefix) :]) not in self._read
            and key not in IRRELEVANT_KEYS
            and not self._is_neutral(key, value)
        ]
        if unread:
            raise CompileError(
                f"{self._file.path} has settings of the model that inferc does not know for the "
                f"architecture {self._file.architecture} and must not ignore: {listed(unread)}."
            )

    def _is_neutral(self, key: str, value: Value) -> bool:
        neutral = NEUTRAL_VALUES.get(key, ())
        values: Iterable[object] = value if isinstance(value, np.ndarray | list) else [value]
        return all(item in neutral for item in values)

    def _scalar(self, key: str, default: int | float | None) -> object:
        value = self.raw(key)
        if value is None:
            if default is None:
                raise CompileError(
                    f"{self._file.path} lacks the metadata key {self._prefix}{key}, which the "
                    f"architecture {self._file.architecture} needs; convert the model again."
                )
            return default
        if isinstance(value, np.ndarray):
            distinct = np.unique(value)
            if len(distinct) != 1:
                raise CompileError(
                    f"{self._prefix}{key} of {self._file.path} differs between layers "
                    f"({_shown(value)}), which is not supported for {self._file.architecture}."
                )
            return distinct[0].item()
        return value

    def _wrong(self, key: str, value: object, expected: str) -> CompileError:
        return CompileError(
            f"{self._prefix}{key} of {self._file.path} is {_shown(value)}, not {expected}."
        )


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
