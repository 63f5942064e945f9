"""Finds passes by name, and reads and writes pipelines as text: `dce,fuse-epilogue{max_ops=4}`.

There is no list to keep: pass `fuse-epilogue` is class `FuseEpilogue` in `passes/fuse_epilogue.py`.
Passes of other packages, which this one does not import, are told by `register`.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from inferc.errors import CompileError
from inferc.ir.card import AttrValue
from inferc.ir.parse import ParseError, parse_specs
from inferc.ir.text import format_attr
from inferc.passes.base import Pass

_FOREIGN: dict[str, type[Pass]] = {}


def register(cls: type[Pass]) -> None:
    """Let a pass of another package be found by its name."""
    _FOREIGN[cls.name] = cls
    pass_names.cache_clear()


def class_name(file_stem: str) -> str:
    """Name of the class in a pass file: `fuse_epilogue` holds `FuseEpilogue`."""
    return "".join(part.capitalize() for part in file_stem.split("_"))


@cache
def pass_names() -> tuple[str, ...]:
    """Names of all passes, sorted. Imports every file of the package."""
    stems = sorted(p.stem for p in Path(__file__).parent.glob("[a-z]*.py"))
    own = [s.replace("_", "-") for s in stems if _load(s) is not None]
    return tuple(sorted([*own, *_FOREIGN]))


def find_pass(name: str) -> type[Pass]:
    """The class of a pass. Raises CompileError that lists near names."""
    if name in _FOREIGN:
        return _FOREIGN[name]
    stem = name.replace("-", "_")
    found = _load(stem) if stem.isidentifier() else None
    if found is None:
        near = difflib.get_close_matches(name, pass_names(), 3) or pass_names()
        raise CompileError(f"There is no pass {name!r}; did you mean {', '.join(near)}?")
    if found.name != name:
        raise TypeError(f"{found.__qualname__}.name is {found.name!r}, its file says {name!r}")
    return found


def _load(stem: str) -> type[Pass] | None:
    module_name = f"{__package__}.{stem}"
    if importlib.util.find_spec(module_name) is None:
        return None
    found = getattr(importlib.import_module(module_name), class_name(stem), None)
    is_pass = isinstance(found, type) and issubclass(found, Pass) and found is not Pass
    return found if is_pass else None


def make_pass(name: str, options: dict[str, AttrValue] | None = None) -> Pass:
    """A pass with options. Raises CompileError for an unknown option or a value of a wrong kind."""
    cls = find_pass(name)
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for option, value in (options or {}).items():
        if option not in fields:
            known = ", ".join(fields) or "it has none"
            raise CompileError(f"Pass {name} has no option {option!r}; options: {known}.")
        _check_option(name, fields[option], value)
    return cls(**(options or {}))


def _check_option(name: str, field: dataclasses.Field[object], value: AttrValue) -> None:
    default = field.default
    if default is dataclasses.MISSING or default is None or value is None:
        return
    allowed = (float, int) if isinstance(default, float) else (type(default),)
    if type(value) not in allowed:
        raise CompileError(
            f"Pass {name}: option {field.name!r} must be like {default!r}, got {value!r}."
        )


def parse_pipeline(text: str) -> tuple[Pass, ...]:
    """Read `a,b{x=1}`. Raises CompileError with a caret under the mistake."""
    try:
        specs = parse_specs(text)
    except ParseError as error:
        raise CompileError(f"Bad pipeline: {error}") from None
    return tuple(make_pass(name, options) for name, options in specs)


def format_pass(pass_: Pass) -> str:
    """A pass as text, with the options that differ from their defaults."""
    shown: list[str] = []
    for field in dataclasses.fields(pass_):  # type: ignore[arg-type]
        value = getattr(pass_, field.name)
        if field.default is dataclasses.MISSING or value != field.default:
            shown.append(f"{field.name}={format_attr(value)}")
    return pass_.name + (f"{{{', '.join(shown)}}}" if shown else "")


def format_pipeline(passes: Sequence[Pass]) -> str:
    """Write what `parse_pipeline` reads."""
    return ",".join(format_pass(p) for p in passes)
