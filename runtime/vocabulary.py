"""A vocabulary and its merges in a mapped file: nothing is read until it is looked up.

`tokenizers` reads a vocabulary of 262,144 tokens in about a second and keeps some 250 MB for it.
The file is in the safetensors format, with these arrays, n being one more than the largest id:

    text          u8   [bytes]   texts of all tokens in order of id, UTF-8
    text_ends     i32  [n]       where the text of an id ends
    present       u8   [n]       1: the id is a token
    words         i32  [words]   ids of the model's own tokens (not added ones) in order of their
                                 bytes; none where words are not looked up whole
    merge_ends    i32  [n]       merges by their left token: where those of an id end
    merge_rights  i32  [merges]  right token, ascending for each left one
    merge_ranks   i32  [merges]  the lower, the earlier
    merge_ids     i32  [merges]  the token that the two become

An array of i32 whose values all fit is written as u16.
"""

import json
import mmap
import sys
from bisect import bisect_left
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from inferc.errors import ArtifactError

ARRAYS = {
    "text": "U8", "text_ends": "I32", "present": "U8", "words": "I32", "merge_ends": "I32",
    "merge_rights": "I32", "merge_ranks": "I32", "merge_ids": "I32",
}  # fmt: skip
_CODES: Mapping[str, Literal["B", "H", "i"]] = {"U8": "B", "U16": "H", "I32": "i"}
_LENGTH_BYTES = 8


class Vocabulary:
    """Texts of ids, ids of texts, and what two tokens become."""

    def __init__(self, path: Path) -> None:
        arrays = _map_arrays(path)
        self._text, self._text_ends = arrays["text"], arrays["text_ends"]
        self._words = arrays["words"]
        self._merge_ends, self._merge_rights = arrays["merge_ends"], arrays["merge_rights"]
        self._merge_ranks, self._merge_ids = arrays["merge_ranks"], arrays["merge_ids"]
        self.present = arrays["present"]

    def text(self, token: int) -> str | None:
        """A token's text; None for an id that is no token."""
        if not 0 <= token < len(self.present) or not self.present[token]:
            return None
        return str(self._bytes(token), "utf-8")

    @property
    def has_words(self) -> bool:
        """Whether a word that is a token is that token, whatever the merges say."""
        return len(self._words) > 0

    def word(self, text: str) -> int | None:
        """The id of a text among the model's own tokens."""
        wanted = text.encode()
        at = bisect_left(self._words, wanted, key=self._bytes)
        if at < len(self._words) and self._bytes(self._words[at]) == wanted:
            return self._words[at]
        return None

    def merge(self, left: int, right: int) -> tuple[int, int] | None:
        """Rank and id of what two neighbours become; None if they stay two."""
        begin = self._merge_ends[left - 1] if left else 0
        end = self._merge_ends[left]
        at = bisect_left(self._merge_rights, right, begin, end)
        if at < end and self._merge_rights[at] == right:
            return self._merge_ranks[at], self._merge_ids[at]
        return None

    def _bytes(self, token: int) -> bytes:
        begin = self._text_ends[token - 1] if token else 0
        return bytes(self._text[begin : self._text_ends[token]])


def _map_arrays(path: Path) -> dict[str, "memoryview[int]"]:
    """Raises ArtifactError for a file of another form; what is in it has been digested."""
    try:
        with path.open("rb") as stream:
            mapped = memoryview(mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ))
        begin = _LENGTH_BYTES + int.from_bytes(mapped[:_LENGTH_BYTES], "little")
        header = json.loads(bytes(mapped[_LENGTH_BYTES:begin]))
        return {name: _array(mapped[begin:], header[name], dtype) for name, dtype in ARRAYS.items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(
            f"{path}: the file is damaged, it is no vocabulary ({error})."
        ) from error


def _array(data: "memoryview[int]", entry: dict[str, Any], dtype: str) -> "memoryview[int]":
    found = entry["dtype"]
    if (found != dtype and (dtype, found) != ("I32", "U16")) or sys.byteorder != "little":
        raise ValueError(f"expected {dtype} on a little-endian machine, found {found}")
    first, last = entry["data_offsets"]
    array = data[first:last].cast(_CODES[found])
    if [len(array)] != entry["shape"]:
        raise ValueError(f"expected shape {entry['shape']}, found [{len(array)}]")
    return array
