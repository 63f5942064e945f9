"""Tokens to text while they come, without ever emitting half a character."""

from collections import deque
from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"
_PROMPT_CONTEXT_TOKENS = 6
_CONTEXT_CHUNKS = 3
_MAX_PENDING = 4
"""A UTF-8 character has at most four bytes, so of four pending tokens one begins no character."""

Decode = Callable[[Sequence[int]], str]


class Detokenizer:
    """Text of one sequence, in pieces.

    A window of tokens is decoded, of which the first are context whose text is already out:

        … emitted … |-- context --|-- pending: decodes to an unfinished character --|

    The context keeps what decoders do at the beginning of a text (dropping a space) from happening
    in its middle. It begins between characters: byte-fallback decoders spoil a whole run of bytes
    for one that is out of place. Text that ends in U+FFFD may be unfinished and is kept back.
    """

    def __init__(self, decode: Decode, prompt: Sequence[int] = ()) -> None:
        self._decode = decode
        context, self._pending = _split_prompt(decode, list(prompt[-_PROMPT_CONTEXT_TOKENS:]))
        self._chunks = deque([context], maxlen=_CONTEXT_CHUNKS)
        self._context = context
        self._context_text = decode(context)

    def push(self, token: int) -> str:
        """Text that has become certain with this token; often empty inside a character."""
        self._pending.append(token)
        text = self._pending_text()
        if not text.endswith(REPLACEMENT):
            return self._settle(text)
        if len(self._pending) < _MAX_PENDING:
            return ""
        return self._give_up_oldest()

    def flush(self) -> str:
        """What is still kept back, at the end; an unfinished character shows as U+FFFD."""
        return self._settle(self._pending_text()) if self._pending else ""

    def _pending_text(self) -> str:
        text = self._decode(self._context + self._pending)
        if text.startswith(self._context_text):
            return text[len(self._context_text) :]
        # The decoder changed text that is out already, so these tokens can only stand alone.
        return self._decode(self._pending)

    def _settle(self, text: str) -> str:
        """All pending tokens are out and become context."""
        self._chunks.append(self._pending)
        self._pending = []
        self._context = [token for chunk in self._chunks for token in chunk]
        self._context_text = self._decode(self._context)
        return text

    def _give_up_oldest(self) -> str:
        """The oldest pending token cannot be completed any more; the later ones still can."""
        oldest, *later = self._pending
        text = self._decode([oldest])
        self._chunks.clear()
        self._context, self._context_text, self._pending = [], "", []
        return text + "".join(self.push(token) for token in later)


def _split_prompt(decode: Decode, tail: list[int]) -> tuple[list[int], list[int]]:
    """Context and pending tokens at the end of a prompt, which may end inside a character."""
    for pending in range(min(len(tail), _MAX_PENDING - 1) + 1):
        known = tail[: len(tail) - pending]
        for start in range(max(1, len(known))):
            text = decode(known[start:])
            if not text.startswith(REPLACEMENT) and not text.endswith(REPLACEMENT):
                return known[start:], tail[len(known) :]
    return [], []
