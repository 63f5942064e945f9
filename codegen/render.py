"""Templates to source text: one environment, an undefined variable is an error."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

TEMPLATES = Path(__file__).parent / "templates" / "cpu"
CUDA_TEMPLATES = TEMPLATES.with_name("cuda")
INCLUDE = Path(__file__).parent / "include"


@cache
def environment() -> Environment:
    """The one environment of all templates."""
    return Environment(
        loader=FileSystemLoader([TEMPLATES, CUDA_TEMPLATES]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def render(template: str, params: Any) -> str:
    """Render a template with the fields of a frozen dataclass."""
    fields = {f.name: getattr(params, f.name) for f in dataclasses.fields(params)}
    return environment().get_template(template).render(fields)


def comment(text: str) -> str:
    """Text as C++ line comments."""
    return "".join(f"// {line}".rstrip() + "\n" for line in text.splitlines())
