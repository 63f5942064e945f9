"""Tokenizer, chat template and token facts of a Hugging Face directory."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from tokenizers import Tokenizer

from inferc.errors import CompileError
from inferc.frontend.tokenizer_json import AddedToken, Json, parse, post_processor, to_text
from inferc.frontend.tokens import GenerationDefaults, SpecialTokens, TokenizerFiles
from inferc.frontend.weights import listed

_PROBE = "a"


@dataclass(frozen=True)
class _Directory:
    """The JSON files of one model that say something about tokens; {} for those it lacks."""

    path: Path
    tokenizer_config: Json
    special_tokens_map: Json
    config: Json
    generation: Json

    def special_text(self, name: str) -> str | None:
        """Text of a special token, which is stored as text or as an object with `content`."""
        for source in (self.tokenizer_config, self.special_tokens_map):
            match source.get(name):
                case str(text) | {"content": str(text)}:
                    return text
        return None


def from_directory(path: Path) -> TokenizerFiles:
    """Read the tokenizer files in `path`; they need a tokenizer.json."""
    file = path / "tokenizer.json"
    if not file.is_file():
        raise CompileError(_why_no_tokenizer(path))
    directory = _Directory(
        path,
        _read_json(path / "tokenizer_config.json"),
        _read_json(path / "special_tokens_map.json"),
        _read_json(path / "config.json"),
        _read_json(path / "generation_config.json"),
    )
    tokenizer_json, tokenizer = _completed(directory, _read_json(file), str(file))
    special = _special(directory, tokenizer)
    return TokenizerFiles(
        tokenizer_json=tokenizer_json,
        chat_template=_chat_template(directory),
        special=special,
        generation=_generation(directory),
        vocab_size=tokenizer.get_vocab_size(with_added_tokens=True),
    )


def _why_no_tokenizer(path: Path) -> str:
    if (path / "tekken.json").is_file():
        return (
            f"{path} has Mistral's tekken.json but no tokenizer.json, which inferc needs. Download "
            "tokenizer.json from the model's page, or from the model that it was tuned from."
        )
    sources = [name for name in ("tokenizer.model", "vocab.json") if (path / name).is_file()]
    if sources:
        return (
            f"{path} has {listed(sources)} but no tokenizer.json, which inferc needs. Make one: "
            f"python -c \"from transformers import AutoTokenizer as T; d = '{path}'; "
            'T.from_pretrained(d).save_pretrained(d)"'
        )
    return f"{path} has no tokenizer.json; download it from the model's page."


def _read_json(path: Path) -> Json:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise CompileError(f"{path} is no valid JSON: {error}.") from error
    if not isinstance(value, dict):
        raise CompileError(f"{path} should hold a JSON object.")
    return value


# tokenizer.json, with what the other files add to it


def _completed(directory: _Directory, document: Json, source: str) -> tuple[str, Tokenizer]:
    """The document with the added tokens and the BOS/EOS rule of tokenizer_config.json."""
    document["truncation"] = document["padding"] = None  # a runtime must not cut prompts silently
    text, tokenizer = _load(document, source)
    missing = _missing_tokens(directory, tokenizer)
    if missing:
        document["added_tokens"] = [*_list(document.get("added_tokens")), *missing]
        text, tokenizer = _load(document, source)
        _check_ids(missing, tokenizer, source)
    before, after = _surroundings(tokenizer)
    wanted = _wanted_surroundings(directory, tokenizer, before, after)
    if wanted != (before, after):
        texts = {i: tokenizer.id_to_token(i) or "" for ids in wanted for i in ids}
        document["post_processor"] = post_processor(texts, before=wanted[0], after=wanted[1])
        text, tokenizer = _load(document, source)
    return text, tokenizer


def _load(document: Json, source: str) -> tuple[str, Tokenizer]:
    text = to_text(document)
    return text, parse(text, source)


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _missing_tokens(directory: _Directory, tokenizer: Tokenizer) -> list[Json]:
    """Added tokens that only tokenizer_config.json knows, in order of their ids."""
    decoder = directory.tokenizer_config.get("added_tokens_decoder", {})
    if not isinstance(decoder, dict):
        return []
    switches = [field.name for field in fields(AddedToken) if field.name not in ("id", "content")]
    return [
        asdict(
            AddedToken(
                id=int(number),
                content=entry["content"],
                **{name: bool(entry.get(name, False)) for name in switches},
            )
        )
        for number, entry in sorted(decoder.items(), key=lambda item: int(item[0]))
        if tokenizer.token_to_id(entry["content"]) is None
    ]


def _check_ids(added: Iterable[Json], tokenizer: Tokenizer, source: str) -> None:
    moved = [
        f"{entry['content']} ({entry['id']})"
        for entry in added
        if tokenizer.token_to_id(str(entry["content"])) != entry["id"]
    ]
    if moved:
        raise CompileError(
            f"tokenizer_config.json gives tokens ids that do not follow on those of {source}: "
            f"{listed(moved)}. The files are of different versions: download them again."
        )


def _surroundings(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Token ids that the post-processor puts before and after a text."""
    bare = tokenizer.encode(_PROBE, add_special_tokens=False).ids
    whole = tokenizer.encode(_PROBE, add_special_tokens=True).ids
    for start in range(len(whole) - len(bare) + 1):
        if whole[start : start + len(bare)] == bare:
            return whole[:start], whole[start + len(bare) :]
    return [], []


def _wanted_surroundings(
    directory: _Directory, tokenizer: Tokenizer, before: list[int], after: list[int]
) -> tuple[list[int], list[int]]:
    """The surroundings after `add_bos_token` and `add_eos_token`, where those are stated."""
    bos, eos = (_id_of(tokenizer, directory.special_text(n)) for n in ("bos_token", "eos_token"))
    match directory.tokenizer_config.get("add_bos_token"):
        case True if bos is not None and bos not in before:
            before = [bos, *before]
        case False:
            before = [i for i in before if i != bos]
    match directory.tokenizer_config.get("add_eos_token"):
        case True if eos is not None and eos not in after:
            after = [*after, eos]
        case False:
            after = [i for i in after if i != eos]
    return before, after


# Token facts


def _id_of(tokenizer: Tokenizer, text: str | None) -> int | None:
    return None if text is None else tokenizer.token_to_id(text)


def _special(directory: _Directory, tokenizer: Tokenizer) -> SpecialTokens:
    texts = _special_texts(directory)
    before, _ = _surroundings(tokenizer)
    bos = _first(_id_of(tokenizer, texts.get("bos_token")), *_stated(directory, "bos_token_id"))
    pad = _first(_id_of(tokenizer, texts.get("pad_token")), *_stated(directory, "pad_token_id"))
    own_eos = _id_of(tokenizer, texts.get("eos_token"))
    ends = [*_stated(directory, "eos_token_id"), *([] if own_eos is None else [own_eos])]
    size = _vocab_size(directory)
    return SpecialTokens(
        eos=tuple(dict.fromkeys(i for i in ends if size is None or i < size)),
        bos=bos,
        pad=pad,
        add_bos=bos is not None and before[:1] == [bos],
        texts=texts,
    )


def _special_texts(directory: _Directory) -> Mapping[str, str]:
    names = [*directory.special_tokens_map, *directory.tokenizer_config]
    texts = {name: directory.special_text(name) for name in names if name.endswith("_token")}
    return {name: text for name, text in texts.items() if text is not None}


def _stated(directory: _Directory, name: str) -> list[int]:
    """Ids that generation_config.json and config.json state under `name`: one, several or none."""
    text_config = directory.config.get("text_config")
    sources = [directory.generation, directory.config]
    sources += [text_config] if isinstance(text_config, dict) else []
    ids: list[int] = []
    for source in sources:
        value = source.get(name)
        items: Sequence[object] = value if isinstance(value, list) else [value]
        if not all(item is None or isinstance(item, int) for item in items):
            raise CompileError(f"{name} of {directory.path} should be token ids, not {value!r}.")
        ids += [item for item in items if isinstance(item, int) and item >= 0]
    return ids


def _first(*ids: int | None) -> int | None:
    return next((i for i in ids if i is not None), None)


def _vocab_size(directory: _Directory) -> int | None:
    """Rows of the embedding; an end token beyond them (a left-over default) cannot occur."""
    text_config = directory.config.get("text_config")
    source = text_config if isinstance(text_config, dict) else directory.config
    size = source.get("vocab_size")
    return size if isinstance(size, int) else None


# Chat template and sampling


def _chat_template(directory: _Directory) -> str | None:
    file = directory.path / "chat_template.jinja"
    if file.is_file():
        return file.read_text("utf-8")
    for source in (
        _read_json(directory.path / "chat_template.json"),
        directory.tokenizer_config,
    ):
        template = source.get("chat_template")
        if isinstance(template, str):
            return template
        if isinstance(template, list):
            return _named_template(directory, template)
    return None


def _named_template(directory: _Directory, entries: Sequence[object]) -> str:
    named: dict[str, str] = {}
    for entry in entries:
        match entry:
            case {"name": str(name), "template": str(template)}:
                named[name] = template
    if len(named) == 1:
        return next(iter(named.values()))
    if "default" not in named:
        raise CompileError(
            f"{directory.path} has several chat templates ({listed(named) or 'none of them valid'})"
            " but none called default; write the one to use to chat_template.jinja there."
        )
    return named["default"]


def _generation(directory: _Directory) -> GenerationDefaults:
    found: dict[str, bool | int | float | None] = {}
    for field in fields(GenerationDefaults):
        value = directory.generation.get(field.name)
        if value is not None and not isinstance(value, bool | int | float):
            raise CompileError(
                f"{field.name} in {directory.path / 'generation_config.json'} is {value!r}, "
                "not a number."
            )
        found[field.name] = value
    return _defaults(found)


def _defaults(found: Mapping[str, bool | int | float | None]) -> GenerationDefaults:
    def number(name: str) -> float | None:
        value = found[name]
        return None if value is None else float(value)

    sample, top_k = found["do_sample"], found["top_k"]
    return GenerationDefaults(
        do_sample=None if sample is None else bool(sample),
        temperature=number("temperature"),
        top_k=None if top_k is None else int(top_k),
        top_p=number("top_p"),
        min_p=number("min_p"),
        repetition_penalty=number("repetition_penalty"),
    )
