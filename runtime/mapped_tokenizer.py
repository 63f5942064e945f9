"""Byte-pair encoding over a mapped vocabulary; the rules around it are those of `tokenizers`."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import groupby
from typing import TYPE_CHECKING

from inferc.runtime.vocabulary import Vocabulary

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.decoders import Decoder

_REMEMBERED = 16_384
_LONGEST_REMEMBERED = 32


@dataclass(frozen=True)
class Encoded:
    """As the library's `Encoding`, as far as it is wanted."""

    ids: list[int]


class MappedTokenizer:
    """What `TextTokenizer` asks of a `tokenizers.Tokenizer`, with the same answers.

    `rules` is a tokenizer whose vocabulary ends at single characters (see `vocabulary_writer`).
    """

    def __init__(self, rules: "Tokenizer", vocabulary: Vocabulary) -> None:
        self._rules = rules
        self._vocabulary = vocabulary
        self._added = rules.get_added_tokens_decoder()  # a copy of thousands of objects
        self._special = frozenset(t.content for t in self._added.values() if t.special)
        self._merge_pair = lru_cache(_REMEMBERED)(vocabulary.merge)
        self._merge_often = lru_cache(_REMEMBERED)(self._merge)

    @property
    def decoder(self) -> "Decoder | None":
        """The library's decoder."""
        return self._rules.decoder

    def encode(self, text: str, add_special_tokens: bool = True) -> Encoded:
        """Ids of a text."""
        letters = self._rules.encode(text, add_special_tokens=add_special_tokens)
        ids: list[int] = []
        for word, pairs in groupby(zip(letters.word_ids, letters.ids, strict=True), _word):
            symbols = tuple(symbol for _, symbol in pairs)
            if word is None:  # special tokens around the text
                ids += symbols
            elif len(symbols) <= _LONGEST_REMEMBERED:
                ids += self._merge_often(symbols)
            else:
                ids += self._merge(symbols)
        return Encoded(ids)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ids; those that are no tokens are left out."""
        texts = [text for token in token_ids if (text := self.id_to_token(token)) is not None]
        if skip_special_tokens:
            texts = [text for text in texts if text not in self._special]
        decoder = self.decoder
        return " ".join(texts) if decoder is None else decoder.decode(texts)

    def id_to_token(self, token: int) -> str | None:
        """A token's own string."""
        return self._vocabulary.text(token)

    def get_vocab_size(self, with_added_tokens: bool = True) -> int:
        """Tokens, the added ones included; the library counts without them if asked to."""
        assert with_added_tokens, "the file does not tell added tokens from others"
        return bytes(self._vocabulary.present).count(1)

    def get_added_tokens_decoder(self) -> "dict[int, AddedToken]":
        """Added tokens by id."""
        return self._added

    def _merge(self, letters: tuple[int, ...]) -> tuple[int, ...]:
        """Tokens of a word: the pair of lowest rank is merged first, of equal ones the left one.

        A heap of pairs and a linked list, as `Word::merge_all` of `tokenizers` has them. A pair
        whose sides have changed since it was queued counts if it would become the same token.
        """
        if self._vocabulary.has_words and (whole := self._whole(letters)) is not None:
            return (whole,)
        symbols, merge, end = list(letters), self._merge_pair, len(letters)
        before, after = list(range(-1, end - 1)), list(range(1, end + 1))
        queue = [
            (found[0], at, found[1])
            for at in range(end - 1)
            if (found := merge(symbols[at], symbols[at + 1])) is not None
        ]
        heapify(queue)
        while queue:
            _, at, token = heappop(queue)
            right = after[at]
            if symbols[at] < 0 or right == end:
                continue
            current = merge(symbols[at], symbols[right])
            if current is None or current[1] != token:
                continue
            symbols[at], symbols[right] = token, -1
            after[at] = following = after[right]
            if following < end:
                before[following] = at
                _queue(queue, at, merge(token, symbols[following]))
            if before[at] >= 0:
                _queue(queue, before[at], merge(symbols[before[at]], token))
        return tuple(symbol for symbol in symbols if symbol >= 0)

    def _whole(self, letters: tuple[int, ...]) -> int | None:
        """The token of a whole word, for models that look there first (`ignore_merges`)."""
        return self._vocabulary.word("".join(self.id_to_token(s) or "" for s in letters))


def _word(pair: tuple[int | None, int]) -> int | None:
    return pair[0]


def _queue(queue: list[tuple[int, int, int]], at: int, found: tuple[int, int] | None) -> None:
    if found is not None:
        heappush(queue, (found[0], at, found[1]))
