"""Stop strings: text is held back while it may still turn into one."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Screened:
    """Text that may be shown, and whether a stop string ended it."""

    text: str
    stopped: bool


class StopStrings:
    """Screens the text of one sequence. Stop strings may span any number of tokens."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> Screened:
        """Screen more text; what follows a stop string is dropped, and the string itself too."""
        if not self._stops:
            return Screened(text, False)
        held = self._held + text
        found = [at for at in (held.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self._held = ""
            return Screened(held[: min(found)], True)
        certain = len(held) - self._suspicious_tail(held)
        self._held = held[certain:]
        return Screened(held[:certain], False)

    def flush(self) -> str:
        """What is still held back, at the end."""
        held, self._held = self._held, ""
        return held

    def _suspicious_tail(self, text: str) -> int:
        """Length of the longest end of `text` with which a stop string begins."""
        longest = max(map(len, self._stops)) - 1
        for length in range(min(longest, len(text)), 0, -1):
            tail = text[len(text) - length :]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
