"""Splits a tokenizer.json: rules that `tokenizers` loads at once, and a vocabulary to map.

Byte-pair encoding starts from single characters. What leads to these (normalizing, splitting, added
tokens, bytes for unknown characters) is left to `tokenizers`, with a vocabulary of nothing else;
which neighbours then become one token is looked up in the mapped merges (`mapped_tokenizer`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from inferc.runtime.token_bytes import BYTE_LETTERS
from inferc.runtime.vocabulary import ARRAYS

_BYTES = {f"<0x{byte:02X}>" for byte in range(256)}
_TYPES = {"U8": "u1", "U16": "<u2", "I32": "<i4"}


@dataclass(frozen=True)
class SplitTokenizer:
    """`rules`: a tokenizer.json. `vocabulary`: the file that `Vocabulary` maps."""

    rules: str
    vocabulary: bytes


def split_tokenizer(text: str) -> SplitTokenizer | None:
    """The two parts of a tokenizer.json; None if it is not plain byte-pair encoding.

    Others (unigram models, marks on parts of words, a length to cut or fill to) are read by
    `tokenizers` as they stand.
    """
    document = json.loads(text)
    model = document["model"]
    if not _is_plain(document):
        return None
    words, added = model["vocab"], {t["content"]: t["id"] for t in document["added_tokens"]}
    letters = {
        word: token
        for word, token in words.items()
        if len(word) == 1 or word in _BYTES or word == model.get("unk_token")
    }
    rules = {
        **document,
        "model": {
            **model, "type": "BPE", "vocab": {**letters, **added}, "merges": [],
            "ignore_merges": False,
        },
    }  # fmt: skip
    whole_words = words if model.get("ignore_merges") else {}
    arrays = _text_arrays(words, added, whole_words) | _merge_arrays(words, model["merges"], added)
    return SplitTokenizer(
        json.dumps(rules, ensure_ascii=False, separators=(",", ":")), _safetensors(arrays)
    )


def _is_plain(document: Mapping[str, Any]) -> bool:
    """Whether merging characters by the merges alone gives the tokens of `tokenizers`."""
    model = document["model"]
    if model.get("type") != "BPE" or document.get("truncation") or document.get("padding"):
        return False
    if any(model.get(n) for n in ("dropout", "continuing_subword_prefix", "end_of_word_suffix")):
        return False
    if model.get("ignore_merges") and not _all_characters_are_letters(document):
        return False
    return _added_are_plain(model["vocab"], document["added_tokens"])


def _added_are_plain(words: Mapping[str, int], added: Sequence[Mapping[str, Any]]) -> bool:
    """Whether added tokens have the ids that `tokenizers` gives them, and are no letters.

    It numbers those that are not the model's own behind these, whatever the file says. One of a
    single character would be taken for a letter of the model.
    """
    own = [token for token in added if token["content"] in words]
    outside = [token for token in added if token["content"] not in words]
    numbers = list(range(len(words), len(words) + len(outside)))
    return (
        all(token["id"] == words[token["content"]] for token in own)
        and [token["id"] for token in outside] == numbers
        and all(len(token["content"]) > 1 for token in outside)
    )


def _all_characters_are_letters(document: Mapping[str, Any]) -> bool:
    """Whether the letters of a word joined are the word: none is dropped, unknown or a byte."""
    model, splitter = document["model"], document.get("pre_tokenizer") or {}
    steps = splitter.get("pretokenizers", [splitter])
    ends_in_letters = bool(steps) and steps[-1].get("type") == "ByteLevel"
    return ends_in_letters and all(letter in model["vocab"] for letter in BYTE_LETTERS)


_Arrays = dict[str, npt.NDArray[Any]]


def _text_arrays(
    words: Mapping[str, int], added: Mapping[str, int], whole_words: Mapping[str, int]
) -> _Arrays:
    texts = {token: word for word, token in words.items()}
    texts |= {token: content for content, token in added.items()}
    pieces = [texts.get(token, "").encode() for token in range(max(texts) + 1)]
    present = np.zeros(len(pieces), np.uint8)
    present[list(texts)] = 1
    return {
        "text": np.frombuffer(b"".join(pieces), np.uint8),
        "text_ends": np.cumsum([len(piece) for piece in pieces]),
        "present": present,
        "words": np.array([whole_words[word] for word in sorted(whole_words, key=str.encode)]),
    }


def _merge_arrays(
    words: Mapping[str, int], merges: Sequence[str | list[str]], added: Mapping[str, int]
) -> _Arrays:
    """Of a pair that is listed twice the later rank holds, as in `tokenizers`."""
    rows = []
    for merge in merges:
        left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
        rows.append((words[left], words[right], words[left + right]))
    lefts, rights, ids = np.array(rows, np.int64).reshape(-1, 3).T
    order = np.lexsort((rights, lefts))  # stable: equal pairs stay in order of rank
    pairs = np.stack([lefts, rights])[:, order]
    last = np.append(np.any(pairs[:, 1:] != pairs[:, :-1], axis=0), True)[: len(order)]
    order = order[last]
    size = max([*words.values(), *added.values()]) + 1
    return {
        "merge_ends": np.cumsum(np.bincount(lefts[order], minlength=size)),
        "merge_rights": rights[order],
        "merge_ranks": order,
        "merge_ids": ids[order],
    }


def _safetensors(arrays: _Arrays) -> bytes:
    """Widest first: each begins at a multiple of its size."""
    dtypes = {name: _narrowest(arrays[name], dtype) for name, dtype in ARRAYS.items()}
    header, data = {}, b""
    for name in sorted(ARRAYS, key=lambda name: -np.dtype(_TYPES[dtypes[name]]).itemsize):
        begin = len(data)
        data += arrays[name].astype(_TYPES[dtypes[name]]).tobytes()
        header[name] = {
            "dtype": dtypes[name],
            "shape": [len(arrays[name])],
            "data_offsets": [begin, len(data)],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def _narrowest(array: npt.NDArray[Any], dtype: str) -> str:
    return "U16" if dtype == "I32" and np.max(array, initial=0) < 2**16 else dtype
