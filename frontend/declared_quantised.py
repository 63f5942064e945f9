"""Which weights a config declares quantised, and as what: by its `quantization_config` alone.

Only methods whose stored types follow from the config are declared here; for others the checkpoint
itself has to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from inferc.errors import CompileError
from inferc.frontend.quantised_config import Settings
from inferc.frontend.quantised_fp8 import fp8, mxfp4
from inferc.ir.core import Func, Op
from inferc.ir.types import TensorType

_F8_COLUMNS = 128  # of a block of f8_g128
_MOVES = ("core.transpose", "core.reshape", "core.slice")
# What quantisers leave out unless they are told otherwise: the output embedding.
_HEAD = re.compile(r"(^|\.)lm_head$")


@dataclass(frozen=True)
class Declared:
    """The stored type of a parameter; `transposed`: stored with the last two axes exchanged."""

    dtype: str
    transposed: bool = False


def declared_types(fields: Mapping[str, Any], where: str, func: Func) -> dict[str, Declared]:
    """Types of the quantised parameters of a captured function. Raises CompileError."""
    settings = Settings.of(fields, where)
    kind, experts, linears = _method(settings)
    skipped = fields.get("modules_to_not_convert") or fields.get("ignored_layers")
    patterns = [_HEAD] if skipped is None else [_pattern(str(name)) for name in skipped]
    return _chosen(func, kind, patterns, experts=experts, linears=linears)


def all_quantised(dtype: str, func: Func) -> dict[str, Declared]:
    """Linear layers and experts in a block format; not the output embedding."""
    return _chosen(func, Declared(dtype), [_HEAD], experts=True, linears=True)


def _chosen(
    func: Func, kind: Declared, patterns: list[re.Pattern[str]], *, experts: bool, linears: bool
) -> dict[str, Declared]:
    found = {}
    for name, op in func.params().items():
        path = name.rpartition(".")[0]
        wanted = (experts and _is_experts(op)) or (linears and _is_linear(op))
        if wanted and not any(p.search(path) for p in patterns):
            found[name] = kind
    return found


def _method(settings: Settings) -> tuple[Declared, bool, bool]:
    """The type, and whether experts and linear layers have it."""
    if settings.method == "mxfp4":
        mxfp4(settings)
        return Declared("mxfp4", transposed=True), True, False
    if settings.method == "fp8":
        fp8(settings)
        block = settings.fields.get("weight_block_size")
        if block is not None and block[1] % _F8_COLUMNS == 0:
            return Declared("f8_g128"), True, True
    raise CompileError(
        f"{settings.where}: what weights quantised by {settings.method or 'nothing known'} are "
        "stored as cannot be told from the config alone (it can for fp8 with blocks of 128 columns "
        "and for mxfp4). Plan the directory with its weights, or give a type of the weights "
        "(--dtype bf16) to leave quantisation out."
    )


def _pattern(name: str) -> re.Pattern[str]:
    """A module name with `*` for a part, as the whole path or the beginning of one."""
    parts = re.escape(name).replace(r"\*", r"[^.]+")
    return re.compile(rf"^{parts}(\.|$)")


def _is_linear(op: Op) -> bool:
    """Whether a parameter is the matrix of a plain linear layer (a router need not be one)."""
    type_ = op.result.type
    classes = {root.cls for root in op.loc.roots()}
    return isinstance(type_, TensorType) and type_.rank == 2 and classes == {"Linear"}


def _is_experts(op: Op) -> bool:
    """Whether a parameter holds the stacked matrices of experts."""
    type_ = op.result.type
    stacked = isinstance(type_, TensorType) and type_.rank == 3
    return stacked and any(reader.name == "nn.experts" for reader in _readers(op))


def _readers(op: Op) -> Iterator[Op]:
    """What reads a value, looking through moves."""
    for user in op.result.users:
        if user.name in _MOVES:
            yield from _readers(user)
        else:
            yield user
