"""The bytes that each token stands for, read from the tokenizer's own decoder.

With bytes, streaming is exact and cheap: a character is shown when its last byte has come. Known
are the decoders of byte-level BPE (GPT-2, Llama 3, Qwen, …) and of SentencePiece vocabularies
(Replace, ByteFallback, Fuse, Strip; Metaspace). With any other, a token's text is what decoding it
after its predecessor adds.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from inferc.runtime.mapped_tokenizer import MappedTokenizer

Transform = Callable[[str], bytes]


@dataclass(frozen=True)
class TokenSpelling:
    """How tokens become bytes. `transform` is None for an unknown decoder."""

    transform: Transform | None
    strips_first_space: bool


class TokenBytes:
    """Bytes of tokens; special ones are empty unless `keep_special`."""

    def __init__(self, tokenizer: "Tokenizer | MappedTokenizer") -> None:
        self._tokenizer = tokenizer
        self._spelling = read_spelling(_decoder_steps(tokenizer))
        added = tokenizer.get_added_tokens_decoder()
        self._special = frozenset(token for token, entry in added.items() if entry.special)
        self._known: dict[int, bytes] = {}

    def strips_first_space(self, prompt: Sequence[int]) -> bool:
        """Whether a space at the beginning of the output is only the decoder's mark of a word."""
        begins = not prompt or prompt[-1] in self._special
        return begins and self._spelling.strips_first_space

    def get(self, token: int, previous: int | None, keep_special: bool) -> bytes:
        """Bytes that `token` adds; `previous` matters only for unknown decoders."""
        if token in self._special:
            return self._text(token).encode() if keep_special else b""
        if self._spelling.transform is None:
            return self._decoded_after(token, previous)
        if token not in self._known:
            self._known[token] = self._spelling.transform(self._text(token))
        return self._known[token]

    def _text(self, token: int) -> str:
        return self._tokenizer.id_to_token(token) or ""

    def _decoded_after(self, token: int, previous: int | None) -> bytes:
        if previous is None:
            return self._tokenizer.decode([token]).encode()
        before = self._tokenizer.decode([previous])
        both = self._tokenizer.decode([previous, token])
        alone = self._tokenizer.decode([token])
        return (both[len(before) :] if both.startswith(before) else alone).encode()


def read_spelling(steps: Sequence[dict[str, Any]]) -> TokenSpelling:
    """Understand a decoder from its steps, as written in `tokenizer.json`."""
    replacements: list[tuple[str, str]] = []
    byte_fallback = fused = strips = False
    for step in steps:
        kind = step["type"]
        if kind == "ByteLevel":
            return TokenSpelling(_byte_level, False)
        if kind == "Replace" and "String" in step["pattern"]:
            replacements.append((step["pattern"]["String"], step["content"]))
        elif kind == "Metaspace":
            replacements.append((step["replacement"], " "))
            strips = strips or step.get("prepend_scheme", "always") != "never"
        elif kind == "Strip" and fused and step["content"] == " " and step["stop"] == 0:
            strips = step["start"] > 0
        elif kind == "ByteFallback":
            byte_fallback = True
        elif kind == "Fuse":
            fused = True
        else:
            return TokenSpelling(None, False)
    if not replacements and not byte_fallback:
        return TokenSpelling(None, False)
    return TokenSpelling(_pieces(tuple(replacements), byte_fallback), strips)


def _decoder_steps(tokenizer: "Tokenizer | MappedTokenizer") -> list[dict[str, Any]]:
    decoder = tokenizer.decoder
    if decoder is None:
        return []
    state = json.loads(decoder.__getstate__())
    return list(state["decoders"]) if state["type"] == "Sequence" else [state]


def _byte_level(text: str) -> bytes:
    """GPT-2's alphabet; a token with any other character (an added one) is plain text."""
    if all(character in _BYTE_OF for character in text):
        return bytes(_BYTE_OF[character] for character in text)
    return text.encode()


def _pieces(replacements: tuple[tuple[str, str], ...], byte_fallback: bool) -> Transform:
    def transform(text: str) -> bytes:
        for old, new in replacements:
            text = text.replace(old, new)
        if byte_fallback and len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            return bytes.fromhex(text[3:5])
        return text.encode()

    return transform


def _byte_alphabet() -> dict[str, int]:
    """Printable bytes stand for themselves, the others for characters from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + index): byte for index, byte in enumerate(others)
    }


_BYTE_OF = _byte_alphabet()
BYTE_LETTERS = frozenset(_BYTE_OF)
"""The characters that stand for bytes in byte-level vocabularies."""
