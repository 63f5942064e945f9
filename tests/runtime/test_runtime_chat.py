"""Chat templates: what transformers' environment offers, and refusals as one sentence."""

import json
from datetime import datetime
from pathlib import Path

import pytest
from runtime_tokenizers import byte_level

from inferc.errors import ArtifactError, RequestError
from inferc.runtime.chat import ChatTemplate, load_chat_template

MESSAGES = [{"role": "user", "content": "Hi <b> & 日本"}, {"role": "assistant", "content": "Yes"}]


def render(source: str, **variables: object) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(MESSAGES, **variables)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ messages[0].content }}", "<s>Hi <b> & 日本"),
        ("{% for m in messages %}\n  {{ m['role'] }}\n{% endfor %}", "  user\n  assistant\n"),
        ("    {% if true %}\nx\n    {% endif %}\n", "x\n"),
        ("{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.role }}{% endfor %}", "assistant"),  # noqa: E501
        ("{% for m in messages %}{{ m.role }}{% break %}{% endfor %}", "user"),
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "Hi <b> & 日本"}'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=True) }}", '{\n "a": 2,\n "b": 1\n}'),
        ("{% generation %}{{ messages[1].content }}{% endgeneration %}.", "Yes."),
        ("{% if tools %}T{% else %}-{% endif %}{{ add_generation_prompt }}", "-True"),
        ("{{ messages[1].content.startswith('Y') and missing is not defined }}", "True"),
    ],
)  # fmt: skip
def test_rendering(source: str, expected: str) -> None:
    assert render(source) == expected


def test_variables_and_time() -> None:
    assert render("{{ enable_thinking }}{{ tools[0] }}", enable_thinking=False, tools=["t"]) == (
        "Falset"
    )
    assert render("{{ strftime_now('%Y') }}") == str(datetime.now().year)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 1 }}", "refuses these messages"),
        ("{{ messages.__class__.__mro__ }}", "refuses these messages"),
        ("{% set _ = messages.append(1) %}", "refuses these messages"),
    ],
)
def test_refusals(source: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        render(source)


def test_bad_input() -> None:
    with pytest.raises(ArtifactError, match="not valid Jinja: line 2"):
        render("a\n{% if %}")
    template = ChatTemplate("x", {})
    with pytest.raises(RequestError, match="at least one message"):
        template.render([])
    with pytest.raises(RequestError, match=r"messages\[0\]: expected an object with 'role'"):
        template.render(["hi"])  # type: ignore[list-item]


def test_where_templates_come_from(tmp_path: Path) -> None:
    tokenizer = byte_level()

    def load(**config: object) -> ChatTemplate | None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        return load_chat_template(tmp_path, tokenizer)

    assert load() is None
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    template = load(chat_template=named)
    assert template is not None and template.source == "d"
    template = load(chat_template="{{ bos_token }}{{ eos_token }}", bos_token={"content": "<B>"})
    assert template is not None and template.render(MESSAGES) == "<B></s>"
    (tmp_path / "chat_template.jinja").write_text("file")
    template = load(chat_template="config")
    assert template is not None and template.source == "file"
