"""The artifact's tokenizer: text to ids with BOS exactly once, ids to text, which ids exist."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from inferc.errors import ArtifactError, RequestError
from inferc.runtime.artifact import Manifest, TokenFacts
from inferc.runtime.token_bytes import TokenBytes

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from inferc.runtime.mapped_tokenizer import MappedTokenizer

RULES = "tokenizer/rules.json"
VOCABULARY = "tokenizer/vocabulary.safetensors"
WHOLE = "tokenizer.json"


class TextTokenizer:
    """A `tokenizers.Tokenizer` together with the artifact's facts about special tokens."""

    def __init__(self, tokenizer: "Tokenizer | MappedTokenizer", facts: TokenFacts) -> None:
        self._tokenizer = tokenizer
        self.facts = facts

    def encode(self, text: str) -> list[int]:
        """Ids of a plain prompt, with what the tokenizer adds to one, and BOS exactly once."""
        return self._with_bos(self._tokenizer.encode(_valid(text)).ids)

    def encode_rendered(self, text: str) -> list[int]:
        """Ids of a rendered chat template, which brings its own special tokens."""
        return self._with_bos(self._tokenizer.encode(_valid(text), add_special_tokens=False).ids)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ids."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    @cached_property
    def token_bytes(self) -> TokenBytes:
        """What each token adds to a text, for streaming."""
        return TokenBytes(self._tokenizer)

    def token_text(self, token: int | None) -> str:
        """The token's own string (such as `<|im_end|>`), empty when there is none."""
        text = None if token is None else self._tokenizer.id_to_token(token)
        return text or ""

    def known_ids(self, vocab_size: int) -> npt.NDArray[np.bool_]:
        """Which of the model's `vocab_size` ids stand for a token; padding of the matrix does not.

        Usually the ids are `0 … n-1`, which the count of tokens tells; only a vocabulary with
        holes is asked id by id.
        """
        known = np.zeros(vocab_size, np.bool_)
        count = self._tokenizer.get_vocab_size(with_added_tokens=True)
        id_to_token = self._tokenizer.id_to_token
        end = max(vocab_size, count)
        while end > 0 and id_to_token(end - 1) is None:
            end -= 1
        if end == count:
            known[:end] = True
        else:
            known[:] = [id_to_token(token) is not None for token in range(vocab_size)]
        return known

    def _with_bos(self, token_ids: list[int]) -> list[int]:
        bos = self.facts.bos
        if bos is None or not self.facts.add_bos:
            return token_ids
        written = next((i for i, token in enumerate(token_ids) if token != bos), len(token_ids))
        return [bos, *token_ids[written:]]


class IdsOnly(TextTokenizer):
    """What stands for the tokenizer of a model that came without one: ids in, ids out."""

    def __init__(self, facts: TokenFacts) -> None:
        from tokenizers import Tokenizer
        from tokenizers.models import WordLevel

        super().__init__(Tokenizer(WordLevel({})), facts)

    def encode(self, text: str) -> list[int]:
        """Refused."""
        raise RequestError(
            "This artifact has no tokenizer, because its model came without one: give the prompt "
            "as token ids, or compile again with tokenizer.json beside the model."
        )

    def encode_rendered(self, text: str) -> list[int]:
        """Refused."""
        return self.encode(text)

    def known_ids(self, vocab_size: int) -> npt.NDArray[np.bool_]:
        """All ids: nothing says which are padding."""
        return np.ones(vocab_size, np.bool_)


def load_tokenizer(folder: Path, manifest: Manifest) -> TextTokenizer:
    """The artifact's tokenizer, in two parts or whole; one that never had any takes ids only."""
    facts = manifest.tokens
    if RULES in manifest.files:
        return TextTokenizer(_mapped(folder), facts)
    path = folder / WHOLE
    if path.name not in manifest.files and not path.is_file():
        return IdsOnly(facts)
    return TextTokenizer(_read(path), facts)


def _mapped(folder: Path) -> "MappedTokenizer":
    from inferc.runtime.mapped_tokenizer import MappedTokenizer
    from inferc.runtime.vocabulary import Vocabulary

    return MappedTokenizer(_read(folder / RULES), Vocabulary(folder / VOCABULARY))


def _read(path: Path) -> "Tokenizer":
    from tokenizers import Tokenizer

    if not path.is_file():
        raise ArtifactError(f"{path}: the artifact has no tokenizer; compile the model again.")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ArtifactError(
            f"{path}: the file is damaged, it is no tokenizer ({error})."
        ) from error


def _valid(text: str) -> str:
    """Refuse lone surrogates: what Python makes of bytes or JSON escapes that are no text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"The prompt is not valid Unicode: character {error.start} is"
            f" {text[error.start]!r}, which stands for no character. Was it decoded as UTF-8?"
        ) from None
    return text
