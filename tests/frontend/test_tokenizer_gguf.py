"""tokenizer.json rebuilt from GGUF vocabularies, token for token against three references.

`tokenizer_llama_cpp.json` holds llama.cpp's ids for the corpus (llama-cpp-python 0.3.36, special
tokens parsed, no BOS). SentencePiece is built here from the file's own pieces. transformers' GGUF
conversion is a reference only for SmolLM2, once its digit splitting is put right: for Gemma it
respells the tokens of several spaces as marks and merges them by rank, so that it departs from
SentencePiece and llama.cpp in runs of more than 31 spaces (and takes 20 seconds).
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from inferc.frontend.gguf_file import GgufFile, read_gguf
from inferc.frontend.tokenizer import TokenizerFiles, from_gguf
from inferc.frontend.tokenizer_gguf import TokenType
from inferc.runtime.mapped_tokenizer import MappedTokenizer
from inferc.runtime.vocabulary import Vocabulary
from inferc.runtime.vocabulary_writer import split_tokenizer
from tests.models import gemma3_gguf, smollm2_gguf

DATA = Path(__file__).resolve().parent.parent / "data"
CORPUS: dict[str, str] = json.loads((DATA / "tokenizer_corpus.json").read_text("utf-8"))
LLAMA_CPP = json.loads((DATA / "tokenizer_llama_cpp.json").read_text("utf-8"))
PATHS = {"smollm2": smollm2_gguf, "gemma3": gemma3_gguf}

# SentencePiece never takes control tokens from text, and takes the space mark itself for a space.
NOT_SENTENCEPIECE = {"byte_names", "special_like", "sp_mark"}


@cache
def file(model: str) -> GgufFile:
    return read_gguf(PATHS[model]())


@cache
def files(model: str) -> TokenizerFiles:
    return from_gguf(file(model))


@cache
def tokenizer(model: str) -> Tokenizer:
    return Tokenizer.from_str(files(model).tokenizer_json)


def encode(model: str, text: str) -> list[int]:
    ids: list[int] = tokenizer(model).encode(text, add_special_tokens=False).ids
    return ids


@cache
def sentencepiece_of_gemma() -> sentencepiece.SentencePieceProcessor:
    """A SentencePiece model with the pieces, scores and types of the GGUF file."""
    metadata, proto = file("gemma3").metadata, sentencepiece_model_pb2.ModelProto()
    columns = (metadata[f"tokenizer.ggml.{name}"] for name in ("tokens", "token_type", "scores"))
    for text, kind, score in zip(*columns, strict=True):
        piece = proto.pieces.add()
        piece.piece = text.replace(" ", "▁") if kind == TokenType.USER_DEFINED else text
        piece.type, piece.score = int(kind), float(score)
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    trainer.model_type, trainer.byte_fallback = trainer.BPE, True
    trainer.unk_id, trainer.bos_id, trainer.eos_id, trainer.pad_id = 3, 2, 1, 0
    trainer.unk_piece, trainer.bos_piece = "<unk>", "<bos>"
    trainer.eos_piece, trainer.pad_piece = "<eos>", "<pad>"
    normalizer.name, normalizer.add_dummy_prefix = "identity", False
    normalizer.remove_extra_whitespaces = False
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(proto.SerializeToString())
    return processor


@pytest.mark.parametrize("document", CORPUS)
@pytest.mark.parametrize("model", PATHS)
def test_ids_are_llama_cpps(model: str, document: str) -> None:
    assert encode(model, CORPUS[document]) == LLAMA_CPP[model][document]


@pytest.mark.parametrize("model", PATHS)
def test_ids_of_the_mapped_form_are_llama_cpps(model: str, tmp_path: Path) -> None:
    split = split_tokenizer(files(model).tokenizer_json)
    assert split is not None
    (tmp_path / "vocabulary").write_bytes(split.vocabulary)
    rules = Tokenizer.from_str(split.rules)
    mapped = MappedTokenizer(rules, Vocabulary(tmp_path / "vocabulary"))
    for document, text in CORPUS.items():
        ids = mapped.encode(text, add_special_tokens=False).ids
        assert ids == LLAMA_CPP[model][document], document
        assert mapped.decode(ids) == tokenizer(model).decode(ids)


@pytest.mark.parametrize("document", CORPUS)
def test_gemma_is_sentencepiece(document: str) -> None:
    ids = sentencepiece_of_gemma().EncodeAsIds(CORPUS[document])
    assert (encode("gemma3", CORPUS[document]) == ids) == (document not in NOT_SENTENCEPIECE)


@pytest.fixture(scope="module")
def transformers_smollm2() -> PreTrainedTokenizerBase:
    """With the digit splitting of SmolLM2's own tokenizer.json, which the conversion forgets."""
    path = smollm2_gguf()
    own = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    own.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    return own


@pytest.mark.parametrize("document", CORPUS)
def test_smollm2_is_transformers(
    document: str, transformers_smollm2: PreTrainedTokenizerBase
) -> None:
    ids = transformers_smollm2.encode(CORPUS[document], add_special_tokens=False)
    assert encode("smollm2", CORPUS[document]) == ids


@given(st.text(st.sampled_from(sorted(set("".join(CORPUS.values())) - set("▁<>|"))), max_size=80))
@settings(max_examples=150, deadline=None)
def test_any_text_is_sentencepiece_and_comes_back(text: str) -> None:
    ids = encode("gemma3", text)
    assert ids == sentencepiece_of_gemma().EncodeAsIds(text)
    assert tokenizer("gemma3").decode(ids, skip_special_tokens=False) == text
    assert tokenizer("smollm2").decode(encode("smollm2", text), skip_special_tokens=False) == text


@pytest.mark.parametrize("document", sorted(CORPUS.keys() - {"sp_mark"}))
@pytest.mark.parametrize("model", PATHS)
def test_text_comes_back(model: str, document: str) -> None:
    ids = encode(model, CORPUS[document])
    assert tokenizer(model).decode(ids, skip_special_tokens=False) == CORPUS[document]


def test_bos_rule() -> None:
    assert tokenizer("gemma3").encode("hi").ids == [2, *encode("gemma3", "hi")]
    assert files("gemma3").special.add_bos
    assert tokenizer("smollm2").encode("hi").ids == encode("smollm2", "hi")
    assert not files("smollm2").special.add_bos


def test_token_facts() -> None:
    smollm2, gemma3 = files("smollm2"), files("gemma3")
    assert smollm2.special.eos == (2, 0)  # <|im_end|>, and <|endoftext|> by its text
    assert (smollm2.special.bos, smollm2.special.pad) == (1, 2)
    assert smollm2.special.texts["bos_token"] == "<|im_start|>"
    assert smollm2.vocab_size == 49152
    assert smollm2.chat_template is not None and "<|im_start|>" in smollm2.chat_template
    assert gemma3.special.eos == (1, 106)  # <eos>, and <end_of_turn> by its text
    assert (gemma3.special.bos, gemma3.special.pad) == (2, 0)
    assert gemma3.vocab_size == 262144
    assert gemma3.chat_template is None


def test_every_normal_piece_can_be_merged() -> None:
    """A piece no merges lead to would never be produced, unlike in SentencePiece."""
    metadata = file("gemma3").metadata
    kinds = metadata["tokenizer.ggml.token_type"]
    assert isinstance(kinds, np.ndarray)
    document = json.loads(files("gemma3").tokenizer_json)
    made = {merge.replace(" ", "", 1) for merge in document["model"]["merges"]}
    pieces = [t for t, k in zip(metadata["tokenizer.ggml.tokens"], kinds, strict=True) if k == 1]
    assert all(piece in made for piece in pieces if len(piece) > 1)
