"""Prompts as callers give them: text, or the ids of tokens."""

from collections.abc import Iterable, Mapping, Sequence

from inferc.errors import RequestError
from inferc.runtime.checks import is_integer

Prompt = str | Sequence[int]
"""Text, or the ids of tokens as they are (nothing is added to them)."""


def split_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A lone prompt (text, or ids) becomes a list of one."""
    if isinstance(prompts, str):
        return [prompts]
    items = _items(prompts)
    return [items] if all(is_integer(item) for item in items) else items


def as_ids(prompt: Sequence[int]) -> list[int]:
    """Plain integers of a prompt given as ids: a list, a tuple, an array."""
    items = _items(prompt)
    for item in items:
        if not is_integer(item):
            raise RequestError(f"The prompt has {item!r:.80} where the id of a token is expected.")
    return [int(item) for item in items]


def _items(prompt: object) -> list:  # type: ignore[type-arg]
    # Bytes are a sequence of integers too, but nobody means those as ids of tokens.
    if isinstance(prompt, Iterable) and not isinstance(prompt, bytes | bytearray | Mapping):
        return list(prompt)
    raise RequestError(f"A prompt is text or a sequence of token ids; found {prompt!r:.80}.")
