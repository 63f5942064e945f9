"""Choices for compiling a live module. No torch here, so that the driver can import it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class LiveOptions:
    """What a module does not say of itself.

    Attributes:
        example_ids: Token ids `[B, S]` to trace with; their values do not matter.
        tokenizer: Directory with tokenizer.json; None for an artifact that takes ids only.
        context_tokens: Longest sequence; None for the length of the module's own tables.
    """

    example_ids: Any = None
    tokenizer: Path | None = None
    context_tokens: int | None = None
