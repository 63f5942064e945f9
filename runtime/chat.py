"""Chat templates, rendered as transformers renders them, in jinja2's sandbox.

jinja2 is imported when the first chat is rendered, so that plain generation does not pay for it.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from inferc.errors import ArtifactError, RequestError
from inferc.runtime.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from jinja2 import Template

Message = Mapping[str, Any]
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


class ChatTemplate:
    """A model's own template and the special tokens it may mention."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens)

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """Text of a conversation; `variables` (`tools`, `enable_thinking`, …) go to the template.

        A refusal by the template (`raise_exception`) or a bug in it becomes a RequestError.
        """
        from jinja2 import TemplateError

        _check_messages(messages)
        names = {"tools": None, "documents": None, **self._special_tokens, **variables}
        try:
            return self._template.render(
                messages=list(messages), add_generation_prompt=add_generation_prompt, **names
            )
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise RequestError(f"The chat template refuses these messages: {error}") from error

    @cached_property
    def _template(self) -> "Template":
        from jinja2 import TemplateSyntaxError

        from inferc.runtime.chat_environment import chat_environment

        environment = chat_environment()
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            return environment.from_string(self.source)
        except TemplateSyntaxError as error:
            raise ArtifactError(
                f"The model's chat template is not valid Jinja: line {error.lineno}:"
                f" {error.message}."
            ) from error


def load_chat_template(folder: Path, tokenizer: TextTokenizer) -> ChatTemplate | None:
    """The artifact's template, from `chat_template.jinja` or `tokenizer_config.json`."""
    config = _read_config(folder / "tokenizer_config.json")
    path = folder / "chat_template.jinja"
    if path.is_file():
        source: str | None = _read_template(path)
    else:
        source = _template_in_config(config.get("chat_template"))
    if source is None:
        return None
    special = {name: _token_text(config.get(name)) for name in _SPECIAL_TOKENS}
    facts = tokenizer.facts
    special["bos_token"] = special["bos_token"] or tokenizer.token_text(facts.bos)
    special["pad_token"] = special["pad_token"] or tokenizer.token_text(facts.pad)
    if not special["eos_token"] and facts.eos:
        special["eos_token"] = tokenizer.token_text(facts.eos[0])
    return ChatTemplate(source, {name: text for name, text in special.items() if text})


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ArtifactError(f"{path}: the file is damaged, it is not JSON ({error}).") from error
    return config if isinstance(config, dict) else {}


def _read_template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ArtifactError(f"{path}: the file is damaged, it is not UTF-8 ({error}).") from error


def _template_in_config(value: object) -> str | None:
    """A template is one string, or a list of named ones of which `default` is meant."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        named = {entry["name"]: entry["template"] for entry in value}
        chosen = named.get("default")
        return chosen if isinstance(chosen, str) else None
    return None


def _token_text(value: object) -> str:
    """A special token is written as a string or as an object with its `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _check_messages(messages: Sequence[Message]) -> None:
    if not messages:
        raise RequestError("messages: expected at least one message, found none.")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise RequestError(
                f"messages[{index}]: expected an object with 'role' and 'content',"
                f" found {message!r:.80}."
            )


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike jinja2's own `tojson`, this one does not escape for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
