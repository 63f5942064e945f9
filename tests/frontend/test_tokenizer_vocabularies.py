"""Small made-up GGUF vocabularies: SentencePiece with a space prefix, splits by name, refusals."""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from tokenizers import Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from inferc.errors import CompileError
from inferc.frontend.gguf_file import GgufFile
from inferc.frontend.tokenizer import GenerationDefaults, TokenizerFiles, from_gguf
from inferc.frontend.tokenizer_pre import PRE_TOKENIZERS

CORPUS: dict[str, str] = json.loads(
    (Path(__file__).resolve().parent.parent / "data" / "tokenizer_corpus.json").read_text("utf-8")
)
BYTES = list(bytes_to_unicode().values())
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def gguf_of(architecture: str = "llama", **metadata: Any) -> GgufFile:
    keys = {f"tokenizer.{key.replace('__', '.')}": value for key, value in metadata.items()}
    return GgufFile(Path("m.gguf"), {"general.architecture": architecture, **keys}, tensors={})


def byte_level(
    tokens: list[str] | None = None, types: dict[str, int] | None = None, **metadata: Any
) -> GgufFile:
    """A byte-level vocabulary: all bytes, `tokens`, merges that make "ab" and "abc"."""
    texts = [*BYTES, "ab", "abc", *(tokens or [])]
    kinds = [(types or {}).get(text, NORMAL) for text in texts]
    return gguf_of(
        **{
            "ggml__model": "gpt2",
            "ggml__pre": "gpt-2",
            "ggml__tokens": texts,
            "ggml__token_type": np.array(kinds, np.int32),
            "ggml__merges": ["a b", "ab c"],
        }
        | metadata
    )


def load(files: TokenizerFiles) -> Tokenizer:
    return Tokenizer.from_str(files.tokenizer_json)


def refusal(file: GgufFile) -> str:
    with pytest.raises(CompileError) as info:
        from_gguf(file)
    assert "m.gguf" in str(info.value)
    return str(info.value)


# SentencePiece


@cache
def trained(dummy_prefix: bool) -> sentencepiece.SentencePieceProcessor:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in CORPUS.values() for line in text.splitlines()]),
        model_writer=model,
        model_type="bpe",
        vocab_size=1500,
        byte_fallback=True,
        character_coverage=0.99,
        normalization_rule_name="identity",
        add_dummy_prefix=dummy_prefix,
        remove_extra_whitespaces=False,
        user_defined_symbols=["<tool>"],
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(model.getvalue())
    return processor


def as_gguf(
    processor: sentencepiece.SentencePieceProcessor, architecture: str = "llama", **metadata: Any
) -> GgufFile:
    ids = range(processor.vocab_size())
    kinds = [
        UNKNOWN if processor.IsUnknown(i)
        else CONTROL if processor.IsControl(i)
        else BYTE if processor.IsByte(i)
        else USER_DEFINED if processor.IdToPiece(i) == "<tool>"
        else NORMAL
        for i in ids
    ]  # fmt: skip
    return gguf_of(
        architecture,
        **{
            "ggml__model": "llama",
            "ggml__tokens": [processor.IdToPiece(i) for i in ids],
            "ggml__scores": np.array([processor.GetScore(i) for i in ids], np.float32),
            "ggml__token_type": np.array(kinds, np.int32),
            "ggml__bos_token_id": 1,
            "ggml__eos_token_id": 2,
            "ggml__unknown_token_id": 0,
        }
        | metadata,
    )


@pytest.mark.parametrize("document", sorted(CORPUS.keys() - {"byte_names", "special_like"}))
@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece(prefix: bool, document: str) -> None:
    text, processor = CORPUS[document], trained(prefix)
    tokenizer = load(from_gguf(as_gguf(processor, ggml__add_space_prefix=prefix)))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert ids == processor.EncodeAsIds(text)
    if "▁" not in text:
        assert tokenizer.decode(ids) == text


def test_sentencepiece_defaults_are_prefix_and_bos() -> None:
    files = from_gguf(as_gguf(trained(True)))
    assert files.special.add_bos
    assert load(files).encode("hi").ids == [1, *trained(True).EncodeAsIds("hi")]


def test_bos_and_eos_by_flags() -> None:
    file = as_gguf(trained(True), ggml__add_bos_token=False, ggml__add_eos_token=True)
    files = from_gguf(file)
    assert not files.special.add_bos
    assert load(files).encode("hi").ids == [*trained(True).EncodeAsIds("hi"), 2]


def test_user_defined_and_control_tokens() -> None:
    tokenizer = load(from_gguf(as_gguf(trained(False), ggml__add_space_prefix=False)))
    encoded = tokenizer.encode("a<tool></s>b", add_special_tokens=False)
    assert encoded.tokens == ["a", "<tool>", "</s>", "b"]
    assert tokenizer.decode(encoded.ids) == "a<tool>b"  # control tokens are skipped, others not


def test_phi3_control_tokens_swallow_space() -> None:
    tokenizer = load(from_gguf(as_gguf(trained(False), "phi3", ggml__add_space_prefix=False)))
    for text, swallows in (("</s>", True), ("<s>", False)):
        spaced, plain = tokenizer.encode(f"{text}  b"), tokenizer.encode(f"{text}b")
        assert (spaced.ids == plain.ids) == swallows


# Byte-level BPE


def test_byte_level_merges_and_round_trip() -> None:
    tokenizer = load(from_gguf(byte_level()))
    assert tokenizer.encode("abcab").tokens == ["abc", "ab"]
    assert tokenizer.decode(tokenizer.encode("naïve 👋🏽\r\n").ids) == "naïve 👋🏽\r\n"


def test_added_tokens_are_found_whole() -> None:
    file = byte_level(["<|end|>", "<think>"], {"<|end|>": CONTROL, "<think>": USER_DEFINED})
    tokenizer = load(from_gguf(file))
    encoded = tokenizer.encode("ab<think>x<|end|>")
    assert encoded.tokens == ["ab", "<think>", "x", "<|end|>"]
    assert tokenizer.decode(encoded.ids) == "ab<think>x"


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-2", "I'm 1234 x", ["I", "'m", " 1234", " x"]),
        ("smollm", "I'm 1234 x", ["I", "'m", " ", "1", "2", "3", "4", " x"]),
        ("llama-bpe", "I'M 1234 x", ["I", "'M", " ", "123", "4", " x"]),
        ("qwen2", "I'M 1234\n\n x", ["I", "'M", " ", "1", "2", "3", "4", "\n\n", " x"]),
        ("tekken", "helloWorld 12/\n", ["hello", "World", " ", "1", "2", "/\n"]),
        ("gpt-4o", "helloWorld's 1234", ["hello", "World's", " ", "123", "4"]),
        ("default", "a+b 12345", ["a", "+", "b", " ", "123", "45"]),
        ("falcon", "x`y 1234", ["x", "`", "y", " ", "123", "4"]),
    ],
)
def test_splits(pre: str, text: str, pieces: list[str]) -> None:
    tokenizer = load(from_gguf(byte_level(ggml__pre=pre)))
    found = [text[a:b] for _, (a, b) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    assert found == pieces


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_every_split_loses_nothing(pre: str) -> None:
    tokenizer = load(from_gguf(byte_level(ggml__pre=pre)))
    for name, text in CORPUS.items():
        if name not in ("math_letters", "combining", "korean"):  # not composed: NFC changes them
            assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_splits_are_those_of_transformers() -> None:
    common = PRE_TOKENIZERS.keys() & GGUF_PRE_TOKENIZER_SPLITS.keys()
    assert len(common) > 15
    for name in common:
        assert PRE_TOKENIZERS[name].splits == (GGUF_PRE_TOKENIZER_SPLITS[name],), name


def test_qwen2_composes_characters() -> None:
    tokenizer = load(from_gguf(byte_level(ggml__pre="qwen2")))
    assert tokenizer.encode("e\u0301").ids == tokenizer.encode("é").ids


def test_whole_pieces_before_merges() -> None:
    """Llama 3 takes a piece that is a token even where no merges lead to it."""
    assert load(from_gguf(byte_level(["xyz"], ggml__pre="llama-bpe"))).encode("xyz").tokens == [
        "xyz"
    ]
    assert load(from_gguf(byte_level(["xyz"]))).encode("xyz").tokens == ["x", "y", "z"]


def test_llama3_adds_bos_unless_told_otherwise() -> None:
    tokens, types = ["<|begin|>"], {"<|begin|>": CONTROL}
    facts: dict[str, Any] = {"ggml__pre": "llama-bpe", "ggml__bos_token_id": 258}
    assert load(from_gguf(byte_level(tokens, types, **facts))).encode("a").ids[0] == 258
    facts["ggml__add_bos_token"] = False
    assert load(from_gguf(byte_level(tokens, types, **facts))).encode("a").tokens == ["a"]


def test_all_end_tokens() -> None:
    tokens = ["<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<x>"]
    file = byte_level(
        tokens, dict.fromkeys(tokens, CONTROL), ggml__eos_token_id=258, ggml__eot_token_id=261
    )
    assert from_gguf(file).special.eos == (258, 261, 259, 260)


def test_token_ids_outside_the_vocabulary_are_dropped() -> None:
    special = from_gguf(byte_level(ggml__eos_token_id=9999, ggml__bos_token_id=9999)).special
    assert (special.eos, special.bos, special.add_bos) == ((), None, False)


def test_sampling_defaults() -> None:
    file = byte_level()
    stored = {"general.sampling.temp": np.float32(0.6).item(), "general.sampling.top_k": 20}
    found = from_gguf(GgufFile(file.path, {**file.metadata, **stored}, {})).generation
    assert found == GenerationDefaults(do_sample=True, temperature=0.6, top_k=20)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"ggml__pre": None}, "lacks tokenizer.ggml.pre"),
        ({"ggml__pre": "new-thing"}, "'new-thing'.*known: gpt-2"),
        ({"ggml__model": "bert"}, "kind 'bert'.*rebuilds gpt2"),
        ({"ggml__tokens": None}, "holds no vocabulary"),
        ({"ggml__token_type": np.array([1], np.int32)}, "a value for each token"),
        ({"ggml__merges": None}, "holds no merges"),
        ({"ggml__merges": ["ab"]}, "merges of one part: ab"),
        ({"ggml__merges": ["a zz"]}, "tokenizer of m.gguf cannot be used.*zz"),
    ],
)
def test_broken_vocabularies(metadata: dict[str, Any], message: str) -> None:
    file = byte_level(**metadata)
    present = {key: value for key, value in file.metadata.items() if value is not None}
    with pytest.raises(CompileError, match=message):
        from_gguf(GgufFile(file.path, present, {}))


def test_repeated_tokens_are_named() -> None:
    assert "one token: 'ab' (256 and 258)" in refusal(byte_level(["ab"]))


def test_scores_are_needed() -> None:
    assert "a score for each token" in refusal(as_gguf(trained(True), ggml__scores=None))
