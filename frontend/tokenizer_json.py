"""Write tokenizer.json documents, and check them with the tokenizers library."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from tokenizers import Tokenizer

from inferc.errors import CompileError

Json = dict[str, object]
Merges = Sequence[tuple[str, ...]]

_SPACE_MARK = "▁"


@dataclass(frozen=True)
class AddedToken:
    """A token that is found in the text before it is normalised and split."""

    id: int
    content: str
    special: bool
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


def byte_level_steps(
    tokens: Sequence[str], merges: Merges, *, splits: Sequence[str], ignore_merges: bool, nfc: bool
) -> Json:
    """Steps of a byte-level BPE tokenizer (GPT-2 and most later models)."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    cuts: list[Json] = [
        {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False}
        for split in splits
    ]
    return {
        "normalizer": {"type": "NFC"} if nfc else None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [*cuts, {**byte_level, "use_regex": False}],
        },
        "decoder": {**byte_level, "use_regex": True},
        "model": {**_bpe(tokens, merges), "ignore_merges": ignore_merges},
    }


def sentencepiece_steps(
    tokens: Sequence[str],
    merges: Merges,
    *,
    unk: str | None,
    space_prefix: bool,
    byte_fallback: bool,
) -> Json:
    """Steps of a SentencePiece tokenizer: spaces become a mark, unknown characters bytes."""
    mark: Json = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE_MARK}
    unmark: Json = {"type": "Replace", "pattern": {"String": _SPACE_MARK}, "content": " "}
    prefix: list[Json] = [{"type": "Prepend", "prepend": _SPACE_MARK}] if space_prefix else []
    strip: list[Json] = (
        [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if space_prefix else []
    )
    decoders = [unmark, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prefix, mark]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            **_bpe(tokens, merges),
            "unk_token": unk,
            "fuse_unk": True,
            "byte_fallback": byte_fallback,
        },
    }


def _bpe(tokens: Sequence[str], merges: Merges) -> Json:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": {token: i for i, token in enumerate(tokens)},
        "merges": merges,
    }


def tokenizer_document(
    steps: Json,
    added: Sequence[AddedToken],
    tokens: Sequence[str],
    *,
    before: Sequence[int],
    after: Sequence[int],
) -> Json:
    """A whole tokenizer.json; `before` and `after` are put around every encoded text."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [asdict(token) for token in added],
        "post_processor": post_processor(tokens, before=before, after=after),
        **steps,
    }


def post_processor(
    tokens: Sequence[str] | Mapping[int, str], *, before: Sequence[int], after: Sequence[int]
) -> Json | None:
    """The step that puts special tokens around an encoded text, or None if there are none."""
    if not before and not after:
        return None

    def special(ids: Sequence[int], sequence: int) -> list[Json]:
        return [{"SpecialToken": {"id": tokens[i], "type_id": sequence}} for i in ids]

    def one(name: str, sequence: int) -> list[Json]:
        text: Json = {"Sequence": {"id": name, "type_id": sequence}}
        return [*special(before, sequence), text, *special(after, sequence)]

    return {
        "type": "TemplateProcessing",
        "single": one("A", 0),
        "pair": [*one("A", 0), *one("B", 1)],
        "special_tokens": {
            tokens[i]: {"id": tokens[i], "ids": [i], "tokens": [tokens[i]]}
            for i in (*before, *after)
        },
    }


def to_text(document: Json) -> str:
    """The document as tokenizer.json holds it, with merges in the form that loads cheapest.

    A merge may be written `["a", "b"]` or `"a b"`. The library needs half the memory to read the
    second form (Gemma: 157 MiB instead of 337), which only exists where no part holds a space.
    """
    model = document.get("model")
    if isinstance(model, dict) and isinstance(model.get("merges"), list):
        document = {**document, "model": {**model, "merges": _as_strings(model["merges"])}}
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _as_strings(merges: list[object]) -> list[object]:
    pairs = [m for m in merges if isinstance(m, list | tuple) and len(m) == 2]
    if len(pairs) != len(merges) or any(" " in part for pair in pairs for part in pair):
        return merges
    return [f"{a} {b}" for a, b in pairs]


def parse(text: str, source: str) -> Tokenizer:
    """The tokenizer that `text` describes."""
    try:
        return Tokenizer.from_str(text)
    # The library's Rust errors come as bare Exception; nothing narrower can be caught.
    except Exception as error:
        raise CompileError(f"The tokenizer of {source} cannot be used: {error}.") from error
