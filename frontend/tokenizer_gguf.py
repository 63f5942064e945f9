"""Rebuild tokenizer.json from the vocabulary that a GGUF file holds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from inferc.errors import CompileError
from inferc.frontend.gguf_file import GgufFile
from inferc.frontend.tokenizer_json import (
    AddedToken,
    Json,
    byte_level_steps,
    parse,
    sentencepiece_steps,
    to_text,
    tokenizer_document,
)
from inferc.frontend.tokenizer_pre import PRE_TOKENIZERS, PreTokenizer
from inferc.frontend.tokenizer_spm import merges_from_scores
from inferc.frontend.tokens import GenerationDefaults, SpecialTokens, TokenizerFiles
from inferc.frontend.weights import listed

_KEY = "tokenizer.ggml."

# Texts that end a turn. Converters often record only one end token, and llama.cpp recognises the
# others by their text too (llama-vocab.cpp, special_eog_ids).
_END_TEXTS = frozenset(
    {
        "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<end_of_turn>",
        "<|endoftext|>", "<|end_of_text|>", "<EOT>", "[EOS]", "<|END_OF_TURN_TOKEN|>",
        "<\uff5cend▁of▁sentence\uff5c>",
    }
)  # fmt: skip
# Phi-3's control tokens swallow the white space after them, except these (llama-vocab.cpp).
_PHI3_PLAIN = frozenset({"<unk>", "<s>", "<|endoftext|>"})

_SAMPLING_KEYS = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`, from SentencePiece."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class _Vocabulary:
    file: GgufFile
    tokens: Sequence[str]
    types: Sequence[int]

    def of_type(self, *types: TokenType) -> list[int]:
        return [i for i, kind in enumerate(self.types) if kind in types]

    def id_at(self, key: str) -> int | None:
        """The token id stored under a key, if it is in the vocabulary."""
        value = self.file.metadata.get(f"{_KEY}{key}_token_id")
        return value if isinstance(value, int) and value < len(self.tokens) else None

    def flag(self, key: str, default: bool) -> bool:
        value = self.file.metadata.get(f"{_KEY}{key}", default)
        return bool(value)


def from_gguf(file: GgufFile) -> TokenizerFiles:
    """Tokenizer, chat template and token facts of a GGUF file."""
    vocabulary = _read_vocabulary(file)
    model = file.metadata.get(f"{_KEY}model")
    if model == "gpt2":
        pre = _pre_tokenizer(file)
        steps, add_bos = _byte_level(vocabulary, pre), pre.add_bos
    elif model == "llama":
        steps, add_bos = _sentencepiece(vocabulary), True
    else:
        raise CompileError(
            f"{file.path} has a tokenizer of kind {model!r}; inferc rebuilds gpt2 (byte-level BPE) "
            "and llama (SentencePiece BPE). Compile the model from its Hugging Face directory."
        )
    bos = vocabulary.id_at("bos")
    add_bos = bos is not None and vocabulary.flag("add_bos_token", add_bos)
    before = [bos] if add_bos and bos is not None else []
    eos = vocabulary.id_at("eos")
    after = [eos] if eos is not None and vocabulary.flag("add_eos_token", False) else []
    document = tokenizer_document(
        steps, _added_tokens(vocabulary), vocabulary.tokens, before=before, after=after
    )
    tokenizer_json = to_text(document)
    parse(tokenizer_json, str(file.path))
    return TokenizerFiles(
        tokenizer_json=tokenizer_json,
        chat_template=_chat_template(file),
        special=_special(vocabulary, add_bos),
        generation=_sampling(file),
        vocab_size=len(vocabulary.tokens),
    )


def _read_vocabulary(file: GgufFile) -> _Vocabulary:
    tokens = file.metadata.get(f"{_KEY}tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise CompileError(f"{file.path} holds no vocabulary ({_KEY}tokens).")
    texts = [str(token) or f"[EMPTY_{i}]" for i, token in enumerate(tokens)]
    types = file.metadata.get(f"{_KEY}token_type")
    if types is None:
        types = np.full(len(texts), TokenType.NORMAL, np.int32)
    if not isinstance(types, np.ndarray) or len(types) != len(texts):
        raise CompileError(f"{file.path}: {_KEY}token_type does not have a value for each token.")
    _refuse_repeated(file, texts)
    return _Vocabulary(file, texts, types.tolist())


def _refuse_repeated(file: GgufFile, texts: Sequence[str]) -> None:
    ids = {text: i for i, text in enumerate(texts)}
    if len(ids) < len(texts):
        repeated = [
            f"{text!r} ({i} and {ids[text]})" for i, text in enumerate(texts) if ids[text] != i
        ]
        raise CompileError(f"{file.path} has several ids for one token: {listed(repeated)}.")


def _pre_tokenizer(file: GgufFile) -> PreTokenizer:
    name = file.metadata.get(f"{_KEY}pre")
    if name is None:
        raise CompileError(
            f"{file.path} lacks {_KEY}pre, which says how text is split: it was made by an old "
            "converter, and guessing would tokenise wrongly. Convert the model again."
        )
    if name not in PRE_TOKENIZERS:
        raise CompileError(
            f"{file.path} splits text by the rules of {name!r}, which inferc does not know; known: "
            f"{', '.join(PRE_TOKENIZERS)}. Compile the model from its Hugging Face directory."
        )
    return PRE_TOKENIZERS[str(name)]


def _byte_level(vocabulary: _Vocabulary, pre: PreTokenizer) -> Json:
    stored = vocabulary.file.metadata.get(f"{_KEY}merges")
    if not isinstance(stored, list):
        raise CompileError(f"{vocabulary.file.path} holds no merges ({_KEY}merges).")
    merges = [tuple(str(merge).split(" ", 1)) for merge in stored]
    broken = [str(stored[i]) for i, merge in enumerate(merges) if len(merge) != 2]
    if broken:
        raise CompileError(f"{vocabulary.file.path} has merges of one part: {listed(broken)}.")
    return byte_level_steps(
        vocabulary.tokens,
        merges,
        splits=pre.splits,
        ignore_merges=pre.ignore_merges,
        nfc=pre.nfc,
    )


def _sentencepiece(vocabulary: _Vocabulary) -> Json:
    scores = vocabulary.file.metadata.get(f"{_KEY}scores")
    if not isinstance(scores, np.ndarray) or len(scores) != len(vocabulary.tokens):
        raise CompileError(f"{vocabulary.file.path} does not have a score for each token.")
    values = scores.tolist()
    pieces = {vocabulary.tokens[i]: values[i] for i in vocabulary.of_type(TokenType.NORMAL)}
    unknown = vocabulary.of_type(TokenType.UNKNOWN)
    unk = vocabulary.id_at("unknown")
    unk = unknown[0] if unk is None and unknown else unk
    return sentencepiece_steps(
        vocabulary.tokens,
        merges_from_scores(pieces),
        unk=None if unk is None else vocabulary.tokens[unk],
        space_prefix=vocabulary.flag("add_space_prefix", True),
        byte_fallback=len(vocabulary.of_type(TokenType.BYTE)) == 256,
    )


def _added_tokens(vocabulary: _Vocabulary) -> list[AddedToken]:
    """Tokens that are matched in the text before anything else."""
    strip = (
        vocabulary.file.architecture == "phi3"
        and vocabulary.file.metadata.get(f"{_KEY}model") == "llama"
    )
    special = (TokenType.CONTROL, TokenType.UNKNOWN)
    return [
        AddedToken(
            id=i,
            content=vocabulary.tokens[i],
            special=vocabulary.types[i] in special,
            rstrip=strip and vocabulary.tokens[i] not in _PHI3_PLAIN,
        )
        for i in vocabulary.of_type(*special, TokenType.USER_DEFINED)
    ]


def _special(vocabulary: _Vocabulary, add_bos: bool) -> SpecialTokens:
    stated = [vocabulary.id_at(name) for name in ("eos", "eot", "eom")]
    by_text = [
        i for i in vocabulary.of_type(TokenType.CONTROL) if vocabulary.tokens[i] in _END_TEXTS
    ]
    ends = dict.fromkeys([i for i in stated if i is not None] + by_text)
    ids = {
        "bos_token": vocabulary.id_at("bos"),
        "eos_token": vocabulary.id_at("eos"),
        "pad_token": vocabulary.id_at("padding"),
        "unk_token": vocabulary.id_at("unknown"),
    }
    return SpecialTokens(
        eos=tuple(ends),
        bos=ids["bos_token"],
        pad=ids["pad_token"],
        add_bos=add_bos,
        texts={name: vocabulary.tokens[i] for name, i in ids.items() if i is not None},
    )


def _chat_template(file: GgufFile) -> str | None:
    template = file.metadata.get("tokenizer.chat_template")
    return template if isinstance(template, str) and template else None


def _sampling(file: GgufFile) -> GenerationDefaults:
    found: Mapping[str, object] = {
        name: file.metadata[key] for name, key in _SAMPLING_KEYS.items() if key in file.metadata
    }
    numbers = {name: value for name, value in found.items() if isinstance(value, int | float)}
    return GenerationDefaults(
        do_sample=True if numbers else None,
        temperature=_number(numbers.get("temperature")),
        top_k=None if "top_k" not in numbers else int(numbers["top_k"]),
        top_p=_number(numbers.get("top_p")),
        min_p=_number(numbers.get("min_p")),
        repetition_penalty=_number(numbers.get("repetition_penalty")),
    )


def _number(value: int | float | None) -> float | None:
    """A stored float32 in its shortest decimal form."""
    return None if value is None else float(str(np.float32(value)))
