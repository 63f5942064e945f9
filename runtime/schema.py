"""Plain data in and out of JSON: frozen dataclasses are the schema, nothing is declared twice.

`decode` checks every value against the annotation of its field and names the path of the first
mismatch. Keys it does not know are ignored, so that an older reader can open a newer file.
"""

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin

from inferc.errors import ArtifactError

T = TypeVar("T")


def decode(schema: type[T], data: object, where: str) -> T:
    """Build `schema` from parsed JSON; `where` is the file (and key) named in errors."""
    value = _decode(schema, data, where)
    return typing.cast(T, value)


def encode(value: object) -> Any:
    """Turn dataclasses, mappings and tuples into what `json.dumps` accepts."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    return value


def key_names(schema: object) -> frozenset[str]:
    """All dotted key names that `schema` knows; items of a list carry the list's own name."""
    names: set[str] = set()
    _collect_key_names(schema, "", names)
    return frozenset(names)


def _collect_key_names(schema: object, prefix: str, names: set[str]) -> None:
    for inner in (schema, *get_args(schema)):
        if not (isinstance(inner, type) and is_dataclass(inner)):
            continue
        hints = _hints(inner)
        for field in fields(inner):
            name = f"{prefix}{field.name}"
            names.add(name)
            _collect_key_names(hints[field.name], f"{name}.", names)


def _decode(schema: object, data: object, where: str) -> object:
    origin = get_origin(schema)
    if schema is Any:
        return data
    if origin in (Union, types.UnionType):
        return _decode_optional(schema, data, where)
    if origin is tuple:
        item_schema = get_args(schema)[0]
        items = _expect(data, list, where)
        return tuple(_decode(item_schema, item, f"{where}[{i}]") for i, item in enumerate(items))
    if origin is not None and issubclass(origin, Mapping):
        value_schema = get_args(schema)[1]
        table = _expect(data, dict, where)
        return {key: _decode(value_schema, item, f"{where}.{key}") for key, item in table.items()}
    if isinstance(schema, type) and is_dataclass(schema):
        return _decode_dataclass(schema, data, where)
    if isinstance(schema, type):
        return _expect(data, schema, where)
    raise TypeError(f"{where}: a schema field of type {schema!r} is not supported")


def _decode_optional(schema: object, data: object, where: str) -> object:
    (inner,) = (option for option in get_args(schema) if option is not type(None))
    return None if data is None else _decode(inner, data, where)


def _decode_dataclass(schema: type, data: object, where: str) -> object:
    table = _expect(data, dict, where)
    hints = _hints(schema)
    values = {}
    for field in fields(schema):
        if field.name in table:
            values[field.name] = _decode(
                hints[field.name], table[field.name], f"{where}.{field.name}"
            )
        elif not _has_default(field):
            raise ArtifactError(f"{where}: expected the key '{field.name}', but it is missing.")
    return schema(**values)


@cache
def _hints(schema: type) -> dict[str, Any]:
    """Reading annotations takes longer than decoding a table, of which a manifest has hundreds."""
    return typing.get_type_hints(schema)


def _has_default(field: Field[Any]) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def _expect(data: object, kind: type[T], where: str) -> T:
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return typing.cast(T, float(data))
    if not isinstance(data, kind) or (isinstance(data, bool) and kind is int):
        found = "null" if data is None else type(data).__name__
        raise ArtifactError(f"{where}: expected {kind.__name__}, found {found} ({data!r:.60}).")
    return data
