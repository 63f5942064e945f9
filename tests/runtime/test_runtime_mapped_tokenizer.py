"""A tokenizer in two parts has the ids and texts of the same tokenizer in `tokenizers`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE, Unigram
from tokenizers.trainers import BpeTrainer

from inferc.errors import ArtifactError
from inferc.runtime import vocabulary_writer
from inferc.runtime.mapped_tokenizer import MappedTokenizer
from inferc.runtime.vocabulary import Vocabulary
from inferc.runtime.vocabulary_writer import split_tokenizer

CORPUS = [path.read_text() for path in sorted(Path(__file__).parent.glob("*.py"))]
ADDED = ["<s>", "</s>", "<|im_start|>"]


def _byte_level() -> Tokenizer:
    """GPT-2's kind: words of the text, bytes as letters; words are merged apart."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ADDED])
    return tokenizer


def _sentences() -> Tokenizer:
    """Gemma's kind: the whole text is one word; bytes stand for characters it does not know."""
    special = ["<unk>", *ADDED, *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = Tokenizer(BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    trainer = BpeTrainer(
        vocab_size=1200, special_tokens=special, show_progress=False, limit_alphabet=70,
        max_token_length=12,
    )  # fmt: skip
    tokenizer.train_from_iterator((line for text in CORPUS for line in text.split("\n")), trainer)
    document = json.loads(tokenizer.to_str())
    document["model"]["byte_fallback"] = True
    document["added_tokens"] = [t for t in document["added_tokens"] if "0x" not in t["content"]]
    tokenizer = Tokenizer.from_str(json.dumps(document))
    tokenizer.add_tokens([AddedToken("\n\n", normalized=False), AddedToken("▁▁▁", rstrip=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def _unknown() -> Tokenizer:
    """No bytes for unknown characters: neighbours are one `<unk>`."""
    document = json.loads(_sentences().to_str())
    document["model"]["byte_fallback"] = False
    return Tokenizer.from_str(json.dumps(document))


def _listed_twice() -> Tokenizer:
    """Of a pair that is listed twice the later rank holds."""
    document = json.loads(_byte_level().to_str())
    document["model"]["merges"] += document["model"]["merges"][:40]
    return Tokenizer.from_str(json.dumps(document))


def _whole_words() -> Tokenizer:
    """Llama 3's kind: a word that is a token is that token, though no merges lead to it."""
    document = json.loads(_byte_level().to_str())
    model = document["model"]
    model["ignore_merges"] = True
    for word in ("Ġassert", "xyzzy", "Ġreturn"):
        model["merges"] = [m for m in model["merges"] if "".join(m) != word]
        model["vocab"].setdefault(word, len(model["vocab"]))
    for number, token in enumerate(document["added_tokens"]):
        token["id"] = len(model["vocab"]) + number
    return Tokenizer.from_str(json.dumps(document))


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte level": _byte_level,
    "sentences": _sentences,
    "unknown": _unknown,
    "listed twice": _listed_twice,
    "whole words": _whole_words,
}
TEXTS = [
    "", " ", "def  f(x):\n    return x\n\n\n", "xyzzy assert", "日本語 😀 é", "<s>",
    "a<|im_start|>b</s>",
    "▁▁▁   x", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", *CORPUS[:2],
]  # fmt: skip


def _map(tokenizer: Tokenizer, folder: Path) -> MappedTokenizer:
    split = split_tokenizer(tokenizer.to_str())
    assert split is not None
    (folder / "vocabulary").write_bytes(split.vocabulary)
    return MappedTokenizer(Tokenizer.from_str(split.rules), Vocabulary(folder / "vocabulary"))


@pytest.fixture(scope="module", params=KINDS)
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, MappedTokenizer]:
    tokenizer = KINDS[request.param]()
    return tokenizer, _map(tokenizer, tmp_path_factory.mktemp("mapped"))


def _same(both: tuple[Tokenizer, MappedTokenizer], text: str) -> None:
    library, ours = both
    for special in (True, False):
        ids = library.encode(text, add_special_tokens=special).ids
        assert ours.encode(text, add_special_tokens=special).ids == ids
        assert ours.decode(ids, skip_special_tokens=special) == library.decode(
            ids, skip_special_tokens=special
        )


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_same_ids(both: tuple[Tokenizer, MappedTokenizer], text: str) -> None:
    _same(both, text)


PIECES = st.one_of(
    st.sampled_from(
        [*ADDED, " ", "\n\n", "assert", "return", "self.", "▁", "▁▁▁", "<0x41>", "<unk>"]
    ),
    st.text(max_size=8),
    st.text(alphabet="aest (_.▁", max_size=20),
)  # fmt: skip


@given(pieces=st.lists(PIECES, max_size=12))
@settings(max_examples=300)
def test_same_ids_of_any_text(both: tuple[Tokenizer, MappedTokenizer], pieces: list[str]) -> None:
    _same(both, "".join(pieces))


def test_same_tokens(both: tuple[Tokenizer, MappedTokenizer]) -> None:
    library, ours = both
    size = library.get_vocab_size(with_added_tokens=True)
    assert ours.get_vocab_size(with_added_tokens=True) == size
    for token in range(-1, size + 3):
        expected = library.id_to_token(token) if token >= 0 else None
        assert ours.id_to_token(token) == expected


def test_words_are_looked_up_only_where_merges_are_ignored(tmp_path: Path) -> None:
    """`xyzzy` is a token that no merges lead to."""
    tokenizer = _whole_words()
    assert len(_map(tokenizer, tmp_path).encode("xyzzy").ids) == 1
    document = json.loads(tokenizer.to_str())
    document["model"]["ignore_merges"] = False
    tokenizer = Tokenizer.from_str(json.dumps(document))
    assert len(_map(tokenizer, tmp_path).encode("xyzzy").ids) > 1


def _with(**model: object) -> Callable[[dict[str, Any]], object]:
    return lambda document: document["model"].update(model)


@pytest.mark.parametrize(
    "change",
    [
        _with(dropout=0.1),
        _with(end_of_word_suffix="</w>"),
        _with(continuing_subword_prefix="##"),
        lambda d: d["added_tokens"][-1].update(id=d["added_tokens"][-1]["id"] + 1),
        lambda d: d["added_tokens"][-1].update(content="日"),
        lambda d: d.update(
            truncation={
                "max_length": 4,
                "strategy": "LongestFirst",
                "stride": 0,
                "direction": "Right",
            }
        ),
        lambda d: (d["model"].update(ignore_merges=True), d.update(pre_tokenizer=None)),
    ],
)
def test_others_are_left_whole(change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(_byte_level().to_str())
    assert split_tokenizer(json.dumps(document)) is not None
    change(document)
    assert split_tokenizer(json.dumps(document)) is None


def test_other_models_are_left_whole() -> None:
    assert split_tokenizer(Tokenizer(Unigram([("a", 0.0)], 0)).to_str()) is None


@pytest.mark.parametrize("content", [b"", b"\x02\0\0\0\0\0\0\0{}", b"\xff" * 40])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "vocabulary").write_bytes(content)
    with pytest.raises(ArtifactError, match="vocabulary: the file is damaged"):
        Vocabulary(tmp_path / "vocabulary")


@pytest.mark.parametrize(
    ("stored", "found", "expected"),
    [(b'"U8"', b'"I8"', "U8"), (b'"U16"', b'"F16"', "I32")],
)
def test_other_types_are_refused(
    tmp_path: Path, stored: bytes, found: bytes, expected: str
) -> None:
    split = split_tokenizer(_byte_level().to_str())
    assert split is not None and stored in split.vocabulary
    (tmp_path / "vocabulary").write_bytes(split.vocabulary.replace(stored, found))
    with pytest.raises(ArtifactError, match=f"vocabulary: the file is damaged.*{expected}"):
        Vocabulary(tmp_path / "vocabulary")


def test_wide_arrays_are_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier versions wrote no U16."""
    monkeypatch.setattr(vocabulary_writer, "_narrowest", lambda array, dtype: dtype)
    tokenizer = _whole_words()
    both = tokenizer, _map(tokenizer, tmp_path)
    assert b"U16" not in (tmp_path / "vocabulary").read_bytes()
    for text in TEXTS:
        _same(both, text)


@pytest.mark.parametrize(("last", "dtype"), [(2**16 - 1, "U16"), (2**16, "I32")])
def test_arrays_are_narrow_where_all_values_fit(tmp_path: Path, last: int, dtype: str) -> None:
    """The largest id is what two letters become."""
    document = json.loads(_byte_level().to_str())
    words = document["model"]["vocab"]
    words |= {f"filler {token}": token for token in range(len(words), last)} | {"øþ": last}
    document["model"]["merges"].append(["ø", "þ"])
    document["added_tokens"] = []
    split = split_tokenizer(json.dumps(document))
    assert split is not None
    header = json.loads(split.vocabulary[8:].partition(b"}}")[0] + b"}}")
    found = {name: entry["dtype"] for name, entry in header.items()}
    assert found["merge_ids"] == dtype and found["text_ends"] == "I32"
    assert found["merge_ranks"] == "U16"
    (tmp_path / "vocabulary").write_bytes(split.vocabulary)
    rank = len(document["model"]["merges"]) - 1
    merged = Vocabulary(tmp_path / "vocabulary").merge(words["ø"], words["þ"])
    assert merged == (rank, last)
