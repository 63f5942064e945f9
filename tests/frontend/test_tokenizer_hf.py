"""Tokenizer files of Hugging Face directories: every place where a fact may stand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from inferc.errors import CompileError
from inferc.frontend.tokenizer import GenerationDefaults, from_directory

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
BOS, EOS, PAD, TURN = 256, 257, 258, 259
SPECIAL = ["<bos>", "<eos>", "<pad>", "<turn>"]


def tokenizer(*, adds_bos: bool = False) -> Tokenizer:
    built = Tokenizer(models.BPE({text: i for i, text in enumerate(BYTES)}, []))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIAL])
    if adds_bos:
        built.post_processor = processors.TemplateProcessing(
            single="<bos> $A", special_tokens=[("<bos>", BOS)]
        )
    return built


def write(folder: Path, *, built: Tokenizer | None = None, **files: Any) -> Path:
    (built or tokenizer()).save(str(folder / "tokenizer.json"))
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def load(folder: Path) -> Tokenizer:
    return Tokenizer.from_str(from_directory(folder).tokenizer_json)


def refusal(folder: Path) -> str:
    with pytest.raises(CompileError) as info:
        from_directory(folder)
    return str(info.value)


def test_bare_tokenizer(tmp_path: Path) -> None:
    files = from_directory(write(tmp_path))
    assert load(tmp_path).decode(load(tmp_path).encode("grün 👋").ids) == "grün 👋"
    assert (files.special.eos, files.special.bos, files.special.pad) == ((), None, None)
    assert (files.chat_template, files.special.add_bos) == (None, False)
    assert (files.generation, files.vocab_size) == (GenerationDefaults(), 260)


# End tokens


@pytest.mark.parametrize(
    ("files", "eos"),
    [
        ({"tokenizer_config": {"eos_token": "<eos>"}}, (EOS,)),
        ({"tokenizer_config": {"eos_token": {"content": "<eos>", "lstrip": False}}}, (EOS,)),
        ({"special_tokens_map": {"eos_token": "<eos>"}}, (EOS,)),
        ({"config": {"eos_token_id": EOS}}, (EOS,)),
        ({"config": {"text_config": {"eos_token_id": EOS}}}, (EOS,)),
        ({"generation_config": {"eos_token_id": [TURN, EOS]}}, (TURN, EOS)),
        ({"generation_config": {"eos_token_id": None}, "config": {"eos_token_id": EOS}}, (EOS,)),
        (
            {
                "generation_config": {"eos_token_id": [TURN]},
                "config": {"eos_token_id": EOS},
                "tokenizer_config": {"eos_token": "<pad>"},
            },
            (TURN, EOS, PAD),
        ),
        ({"config": {"vocab_size": 260, "eos_token_id": 50256}}, ()),
    ],
)
def test_end_tokens_are_a_union(
    files: dict[str, Any], eos: tuple[int, ...], tmp_path: Path
) -> None:
    assert from_directory(write(tmp_path, **files)).special.eos == eos


def test_end_token_that_is_no_id(tmp_path: Path) -> None:
    write(tmp_path, generation_config={"eos_token_id": "<eos>"})
    assert "eos_token_id" in refusal(tmp_path) and "'<eos>'" in refusal(tmp_path)


def test_pad_and_bos(tmp_path: Path) -> None:
    config = {"tokenizer_config": {"pad_token": "<pad>"}, "config": {"bos_token_id": BOS}}
    special = from_directory(write(tmp_path, **config)).special
    assert (special.pad, special.bos, special.add_bos) == (PAD, BOS, False)


def test_special_texts_for_templates(tmp_path: Path) -> None:
    write(tmp_path, tokenizer_config={"bos_token": "<bos>", "eos_token": {"content": "<eos>"}})
    assert from_directory(tmp_path).special.texts == {"bos_token": "<bos>", "eos_token": "<eos>"}


# BOS


@pytest.mark.parametrize("adds_bos", [True, False])
@pytest.mark.parametrize("stated", [True, False, None])
def test_bos_rule(adds_bos: bool, stated: bool | None, tmp_path: Path) -> None:
    """tokenizer_config.json decides if it says something, else the post-processor."""
    config: dict[str, Any] = {"bos_token": "<bos>"}
    if stated is not None:
        config["add_bos_token"] = stated
    write(tmp_path, built=tokenizer(adds_bos=adds_bos), tokenizer_config=config)
    wanted = adds_bos if stated is None else stated
    files = from_directory(tmp_path)
    assert files.special.add_bos == wanted
    ids = Tokenizer.from_str(files.tokenizer_json).encode("x").ids
    assert ids == ([BOS] if wanted else []) + [BYTES.index("x")]


def test_eos_rule(tmp_path: Path) -> None:
    config = {"eos_token": "<eos>", "add_eos_token": True}
    write(tmp_path, tokenizer_config=config)
    assert load(tmp_path).encode("x").ids == [BYTES.index("x"), EOS]


def test_other_prefix_tokens_stay(tmp_path: Path) -> None:
    built = tokenizer()
    built.post_processor = processors.TemplateProcessing(
        single="<turn> <bos> $A", special_tokens=[("<turn>", TURN), ("<bos>", BOS)]
    )
    write(tmp_path, built=built, tokenizer_config={"bos_token": "<bos>"})
    assert load(tmp_path).encode("x").ids == [TURN, BOS, BYTES.index("x")]


# tokenizer.json itself


def test_truncation_and_padding_are_removed(tmp_path: Path) -> None:
    built = tokenizer()
    built.enable_truncation(4)
    built.enable_padding(length=8)
    write(tmp_path, built=built)
    assert len(load(tmp_path).encode("x" * 50).ids) == 50


def test_tokens_that_only_the_config_knows(tmp_path: Path) -> None:
    added = {"260": {"content": "<tool>", "special": False, "normalized": False}}
    write(tmp_path, tokenizer_config={"added_tokens_decoder": added})
    assert load(tmp_path).encode("a<tool>").ids == [BYTES.index("a"), 260]
    assert from_directory(tmp_path).vocab_size == 261


def test_added_token_with_a_gap_is_refused(tmp_path: Path) -> None:
    added = {"300": {"content": "<tool>", "special": False}}
    write(tmp_path, tokenizer_config={"added_tokens_decoder": added})
    assert "<tool> (300)" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("present", "message"),
    [
        (["tekken.json"], "tekken.json but no tokenizer.json"),
        (["tokenizer.model"], "AutoTokenizer"),
        (["vocab.json", "merges.txt"], "vocab.json"),
        ([], "has no tokenizer.json; download it"),
    ],
)
def test_without_tokenizer_json(present: list[str], message: str, tmp_path: Path) -> None:
    for name in present:
        (tmp_path / name).write_text("{}")
    assert message in refusal(tmp_path)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    write(tmp_path, tokenizer_config={})
    (tmp_path / "tokenizer_config.json").write_text("{")
    assert "tokenizer_config.json is no valid JSON" in refusal(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[]")
    assert "should hold a JSON object" in refusal(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "Unheard"}}')
    assert "tokenizer.json cannot be used" in refusal(tmp_path)


# Chat templates


def test_template_file_comes_first(tmp_path: Path) -> None:
    write(tmp_path, tokenizer_config={"chat_template": "c"}, chat_template={"chat_template": "b"})
    assert from_directory(tmp_path).chat_template == "b"
    (tmp_path / "chat_template.jinja").write_text("a ✓")
    assert from_directory(tmp_path).chat_template == "a ✓"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("plain", "plain"),
        ([{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}], "d"),
        ([{"name": "rag", "template": "only"}], "only"),
        (None, None),
    ],
)
def test_template_in_the_config(template: object, expected: str | None, tmp_path: Path) -> None:
    write(tmp_path, tokenizer_config={"chat_template": template})
    assert from_directory(tmp_path).chat_template == expected


def test_several_templates_without_default(tmp_path: Path) -> None:
    named = [{"name": name, "template": name} for name in ("tool_use", "rag")]
    write(tmp_path, tokenizer_config={"chat_template": named})
    assert "(tool_use, rag) but none called default" in refusal(tmp_path)


# Sampling


def test_sampling_defaults(tmp_path: Path) -> None:
    config = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": 1}
    assert from_directory(write(tmp_path, generation_config=config)).generation == (
        GenerationDefaults(do_sample=True, temperature=0.6, top_k=20, top_p=0.95)
    )


def test_sampling_default_that_is_no_number(tmp_path: Path) -> None:
    write(tmp_path, generation_config={"temperature": "hot"})
    assert "temperature in " in refusal(tmp_path) and "'hot'" in refusal(tmp_path)
