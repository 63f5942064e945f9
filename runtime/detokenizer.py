"""Tokens to text while they come, without ever emitting half a character."""

from codecs import getincrementaldecoder
from collections.abc import Sequence

from inferc.runtime.token_bytes import TokenBytes

_Utf8Decoder = getincrementaldecoder("utf-8")
_LONGEST_CHARACTER_BYTES = 4


class Detokenizer:
    """Text of one sequence, in pieces; bytes of an unfinished character are kept back.

    A prompt may end inside a character. Its last bytes are taken along, so that the character is
    shown whole when the output completes it. Bytes that are no UTF-8 become U+FFFD.
    """

    def __init__(
        self, token_bytes: TokenBytes, prompt: Sequence[int] = (), *, keep_special: bool = False
    ) -> None:
        self._token_bytes = token_bytes
        self._keep_special = keep_special
        self._previous = prompt[-1] if prompt else None
        self._strip_space = token_bytes.strips_first_space(prompt)
        self._decoder = _Utf8Decoder("replace")
        self._decoder.decode(self._unfinished_end(prompt[-_LONGEST_CHARACTER_BYTES:]))

    def push(self, token: int) -> str:
        """Text that has become certain with this token; often empty inside a character."""
        data = self._token_bytes.get(token, self._previous, self._keep_special)
        self._previous = token
        if self._strip_space and data:
            self._strip_space = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def flush(self) -> str:
        """What is still kept back, at the end; an unfinished character shows as U+FFFD."""
        return self._decoder.decode(b"", final=True)

    def _unfinished_end(self, tokens: Sequence[int]) -> bytes:
        """The bytes at the end of `tokens` that begin a character and do not complete it."""
        data = b"".join(self._token_bytes.get(token, None, False) for token in tokens)
        for length in range(1, min(len(data), _LONGEST_CHARACTER_BYTES - 1) + 1):
            end = data[len(data) - length :]
            if end[0] >= 0xC0:
                decoder = _Utf8Decoder("replace")
                return end if decoder.decode(end) == "" else b""
        return b""
