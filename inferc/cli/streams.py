"""Standard streams as all commands take them, wherever they lead."""

from __future__ import annotations

import io
import os
import sys


def prepare_streams() -> None:
    """Text is read as UTF-8; what a terminal cannot show becomes `?`; closed streams are empty."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="strict")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def discard_output() -> None:
    """Nobody takes the rest: keep the interpreter from complaining when it flushes at its end."""
    sys.stdout = open(os.devnull, "w", encoding="utf-8")
