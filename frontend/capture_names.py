"""Which parameter each stored tensor belongs to, by transformers' own conversion mapping.

Most tensors are parameters under another name. Experts are stored one by one and stacked; a few
tensors are joined or cut. Other conversions are refused. Runs in the capture process.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Chunk,
    Concatenate,
    MergeModulelist,
    Split,
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)

from inferc.errors import CompileError
from inferc.frontend.capture_request import Made


@dataclass(frozen=True)
class Names:
    """Parameters that are stored as they are, by checkpoint key; and those that are made."""

    plain: dict[str, str]
    made: dict[str, Made]


@dataclass
class _Converted:
    """Checkpoint keys that one converter turns into one parameter (or several), by pattern."""

    converter: WeightConverter
    keys: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))


def parameter_names(model: PreTrainedModel, keys: Iterable[str]) -> Names:
    """Names of the parameters that the checkpoint's tensors make. Raises CompileError."""
    transforms = get_model_conversion_mapping(model)
    renamings = [t for t in transforms if isinstance(t, WeightRenaming)]
    converters = [t for t in transforms if isinstance(t, WeightConverter)]
    state: dict[str, Any] = model.state_dict()
    plain: dict[str, str] = {}
    found: dict[str, _Converted] = {}
    for key in sorted(keys, key=dot_natural_key):  # the order in which transformers stacks
        name, pattern = rename_source_key(
            key, renamings, converters, model.base_model_prefix, state
        )
        if pattern is None:
            plain[key] = name
        else:
            converter = next(c for c in converters if pattern in c.source_patterns)
            found.setdefault(name, _Converted(converter)).keys[pattern].append(key)
    made: dict[str, Made] = {}
    for name, converted in found.items():
        made |= _made(model, name, converted)
    return Names(plain, made)


def _made(model: PreTrainedModel, name: str, converted: _Converted) -> dict[str, Made]:
    converter = converted.converter
    lists = [converted.keys[p] for p in converter.source_patterns if converted.keys[p]]
    operations = converter.operations
    kinds = [type(o) for o in operations]
    axes = [getattr(o, "dim", None) for o in operations]
    single = len(converter.target_patterns) == 1
    if kinds in ([MergeModulelist], [MergeModulelist, Concatenate]) and single:
        equal = len({len(keys) for keys in lists}) == 1
        if axes in ([0], [0, 1]) and equal and (len(lists) == 1 or len(kinds) == 2):
            together = tuple(k for keys in zip(*lists, strict=True) for k in keys)
            return {name: Made(together, stack=len(lists[0]))}
    if kinds == [Concatenate] and single:
        return {name: Made(tuple(k for keys in lists for k in keys), axis=int(axes[0] or 0))}
    if kinds in ([Chunk], [Split]) and axes == [0] and [len(keys) for keys in lists] == [1]:
        return _cut(model, name, converter.target_patterns, lists[0][0])
    listed = " and ".join(k.__name__ for k in kinds)
    raise CompileError(
        f"the checkpoint stores {lists[0][0]} in a form that transformers turns into {name} by "
        f"{listed}, which the compiler does not do."
    )


def _cut(model: PreTrainedModel, name: str, targets: list[str], key: str) -> dict[str, Made]:
    """Parameters that are rows of one stored tensor, one below the other."""
    start, made = 0, {}
    for target in targets:
        parameter = name.replace(targets[0], target)
        rows = model.get_parameter(parameter).shape[0]
        made[parameter] = Made((key,), rows=(start, start + rows))
        start += rows
    return made
