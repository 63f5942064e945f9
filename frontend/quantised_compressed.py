"""compressed-tensors, the format of llm-compressor and vLLM.

pack-quantized: `weight_packed` i32[N, K * bits / 32], neighbours along K, the first in the low
bits, codes shifted to be unsigned; `weight_scale` [N, G]; asymmetric ones have `weight_zero_point`
i32[N * bits / 32, G], packed along N and shifted alike; `weight_shape` (N, K); `weight_g_idx`
i32[K] where groups are those of reordered columns (actorder group).

int-quantized, naive-quantized, float-quantized: `weight` i8 or f8_e4m3 [N, K] with `weight_scale`
[N, G], [N, 1], [1] or, for blocks, [N / rows, K / columns]; `weight_zero_point` i8 like the scale.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from inferc.errors import CompileError
from inferc.frontend.quantised_config import Method, Orders, Pieces, Settings, an_object
from inferc.frontend.quantised_fp8 import block_tensor
from inferc.frontend.quantised_gptq import column_order
from inferc.frontend.quantised_tensor import Affine, QuantisedTensor, coded_tensor
from inferc.frontend.quantised_words import codes_of_words, rows_along
from inferc.frontend.weights import StoredTensor
from inferc.ir.blocks import Bytes, Floats
from inferc.ir.blocks_build import pairs_of

_TAKE = "Compile another quantisation of the model, or the unquantised model."
_SCALES = ("f16", "bf16", "f32")
_WEIGHT_FIELDS = {
    "num_bits", "type", "symmetric", "group_size", "strategy", "block_structure", "actorder",
    "dynamic", "observer", "observer_kwargs", "scale_dtype", "zp_dtype",
}  # fmt: skip
_FORMATS = ("pack-quantized", "int-quantized", "naive-quantized", "float-quantized")
_KINDS = {"static": "weight", "dynamic": "group", True: "group", False: None}


@dataclass(frozen=True)
class Scheme:
    """What one entry of `config_groups` says of the weights of the modules that it names."""

    targets: tuple[str, ...]
    packed: bool
    kind: str
    bits: int
    symmetric: bool
    strategy: str
    group: int
    block: tuple[int, int]
    actorder: str | None

    def rank(self, module: str) -> int:
        """How closely a target names the module: 0 not at all, 1 by its class, 2 by its name."""
        return 2 if _named(module, self.targets) else int("Linear" in self.targets)


def _named(module: str, targets: tuple[str, ...]) -> bool:
    """Whether a name or a `re:` pattern is that of the module."""
    return any(re.match(t[3:], module) if t.startswith("re:") else module == t for t in targets)


def compressed_tensors(settings: Settings) -> Method:
    """The method of a compressed-tensors checkpoint. Raises CompileError."""
    settings.absent(("kv_cache_scheme", "transform_config"), _TAKE)
    sparsity = settings.object("sparsity_config")
    if sparsity.get("format", "dense") != "dense":
        raise settings.refused("sparsity_config", "nothing", _TAKE)
    settings.only(
        ("config_groups", "format", "ignore", "quantization_status", "global_compression_ratio",
         "kv_cache_scheme", "transform_config", "sparsity_config", "version")
    )  # fmt: skip
    settings.choice("quantization_status", ("compressed", "frozen"), _TAKE, "compressed")
    groups = {
        name: an_object(group, settings.where, f"quantization_config.config_groups.{name}")
        for name, group in settings.object("config_groups").items()
    }
    schemes = [_scheme(settings, name, group) for name, group in groups.items()]
    kept = tuple(s for s in schemes if s is not None)
    reader = _Reader(kept, settings.names("ignore", settings.fields), settings.where)
    activations = any(g.get("input_activations") for g in groups.values())
    note = "The checkpoint wants quantised activations; they stay floating-point."
    return Method(
        ("weight_packed", "weight", "weight_scale", "weight_zero_point", "weight_shape",
         "weight_g_idx"),
        lambda pieces: "weight_scale" in pieces or "weight_packed" in pieces,
        reader.weight,
        (r"\.(input|output)_(scale|zero_point)$",),
        notes=(note,) if activations else (),
    )  # fmt: skip


def _scheme(settings: Settings, name: str, group: Mapping[str, Any]) -> Scheme | None:
    """The scheme of one group; None if its weights are not quantised. Raises CompileError."""
    fields = group.get("weights")
    if not fields:
        return None
    prefix = f"config_groups.{name}.weights"
    fields = an_object(fields, settings.where, f"quantization_config.{prefix}")
    inner = Settings({f"{prefix}.{k}": v for k, v in fields.items()}, settings.where)
    inner.only(f"{prefix}.{k}" for k in _WEIGHT_FIELDS)

    def choice(field: str, allowed: tuple[Any, ...], default: Any = None) -> Any:
        return inner.choice(f"{prefix}.{field}", allowed, _TAKE, default)

    form = group.get("format") or settings.fields.get("format")
    if form not in _FORMATS:
        raise settings.refused("format", " or ".join(map(repr, _FORMATS)), _TAKE)
    inner.absent((f"{prefix}.dynamic",), _TAKE)
    kind = choice("type", ("int", "float"), "int")
    bits = choice("num_bits", (4, 8) if kind == "int" else (8,))
    given, size = fields.get("strategy"), fields.get("group_size") or 0
    if not isinstance(size, int):
        raise inner.refused(f"{prefix}.group_size", "a number of columns", _TAKE)
    inferred = "group" if size > 0 else "channel" if size == -1 else "tensor"
    allowed = ("tensor", "channel", "group") if kind == "int" else ("tensor", "channel", "block")
    strategy = choice("strategy", allowed, inferred)
    order = choice("actorder", ("group", "weight", "static", "dynamic", True, False, None))
    if kind == "float" and not fields.get("symmetric", True):
        raise inner.refused(f"{prefix}.symmetric", "true for floats", _TAKE)
    if strategy == "group" and (given == "group") and size <= 0:
        raise inner.refused(f"{prefix}.group_size", "a number of columns", _TAKE)
    rows, columns = fields.get("block_structure") or (0, 0)
    return Scheme(
        settings.names("targets", group) or ("Linear",), form == "pack-quantized", kind, bits,
        bool(fields.get("symmetric", True)), strategy, size, (rows, columns),
        _KINDS.get(order, order),
    )  # fmt: skip


@dataclass(frozen=True)
class _Reader:
    schemes: tuple[Scheme, ...]
    ignored: tuple[str, ...]
    where: str

    def weight(self, pieces: Pieces, orders: Orders) -> QuantisedTensor:
        """The weight of a module under its scheme."""
        scheme = self._of(pieces.module)
        _no_zero_points(pieces, scheme)
        if scheme.packed:
            return _packed(pieces, scheme, orders)
        return _floats(pieces, scheme) if scheme.kind == "float" else _integers(pieces, scheme)

    def _of(self, module: str) -> Scheme:
        if _named(module, self.ignored):
            raise CompileError(
                f"{self.where}: the weight of {module} is stored quantised, but "
                "quantization_config.ignore names it. Correct ignore."
            )
        ranked = [(s.rank(module), s) for s in self.schemes]
        best = max((rank for rank, _ in ranked), default=0)
        found = [s for rank, s in ranked if rank == best]
        if best == 0 or len(found) > 1:
            raise CompileError(
                f"{self.where}: the weight of {module} is stored quantised, and "
                f"{'no entry' if best == 0 else 'more than one entry'} of config_groups names it "
                "(by its name, a re: pattern or the class Linear). Correct config_groups."
            )
        return found[0]


def _no_zero_points(pieces: Pieces, scheme: Scheme) -> None:
    """Symmetric codes may be stored with zero points, all zero."""
    zeros = pieces.tensors.get("weight_zero_point")
    if scheme.symmetric and zeros is not None and zeros.raw().any():
        raise CompileError(
            f"{zeros.name} is not zero, but config_groups says that {pieces.module} is symmetric. "
            "Correct config_groups."
        )


def _packed(pieces: Pieces, scheme: Scheme, orders: Orders) -> QuantisedTensor:
    packed = pieces.matrix("weight_packed", ("i32",))
    rows, columns = (int(n) for n in pieces.get("weight_shape", ("i64", "i32"), (2,)).numbers())
    each = 32 // scheme.bits
    pieces.get("weight_packed", ("i32",), (rows, -(-columns // each)))
    shape = (rows, columns)

    group, count = _groups(scheme, columns)
    zeros: StoredTensor | None = None
    if not scheme.symmetric:
        zeros = pieces.get("weight_zero_point", ("i32",), (-(-rows // each), count))

    def zero_points() -> Bytes:
        if zeros is None:
            return np.full((rows, count), 1 << (scheme.bits - 1), np.uint8)
        unpacked = codes_of_words(zeros.numbers().T, scheme.bits).reshape(count, -1)
        return np.ascontiguousarray(unpacked[:, :rows].T)

    order = None
    if "weight_g_idx" in pieces:
        stored = pieces.get("weight_g_idx", ("i32",), (columns,))
        order = column_order(stored.name, stored.numbers(), columns, group, orders)
    elif scheme.actorder == "group":
        pieces.tensor("weight_g_idx", ("i32",))  # raises

    def codes(start: int, stop: int) -> Bytes:
        places = None if order is None else order.read()
        rows = rows_along(packed.numbers()[start:stop], scheme.bits, places)
        return rows[:, : columns * scheme.bits // 8]  # words may be padded

    return _affine(pieces, scheme, shape, codes, zero_points, order)


def _groups(scheme: Scheme, columns: int) -> tuple[int, int]:
    """Columns of a group, and groups."""
    group = scheme.group if scheme.strategy == "group" else columns
    return group, -(-columns // group)


def _affine(
    pieces: Pieces, scheme: Scheme, shape: tuple[int, int], codes: Any, zeros: Any, order: Any
) -> QuantisedTensor:
    group, count = _groups(scheme, shape[1])
    scale = _scale(pieces, scheme, shape[0], count)

    def scales() -> Any:
        return np.broadcast_to(scale.read().reshape(-1, count), (shape[0], count))

    return Affine(
        f"{pieces.module}.weight", shape, scheme.bits, group, scale, codes, scales, zeros,
        list(pieces.tensors.values()), order,
    ).tensor()  # fmt: skip


def _scale(pieces: Pieces, scheme: Scheme, rows: int, count: int) -> StoredTensor:
    if scheme.strategy != "tensor":
        return pieces.get("weight_scale", _SCALES, (rows, count))
    scale = pieces.tensor("weight_scale", _SCALES)
    return scale if scale.shape in ((), (1,)) else pieces.get("weight_scale", _SCALES, (1,))


def _integers(pieces: Pieces, scheme: Scheme) -> QuantisedTensor:
    """Codes as signed bytes."""
    weight = pieces.matrix("weight", ("i8",))
    rows, columns = weight.shape
    _, count = _groups(scheme, columns)
    one_a_row = scheme.symmetric and scheme.strategy != "group" and scheme.bits == 8
    if one_a_row:
        scale = _scale(pieces, scheme, rows, count)
        return coded_tensor(
            f"{pieces.module}.weight", "i8", (rows, columns), scale,
            lambda: weight.numbers().view(np.uint8), lambda: _vector(scale, rows),
            list(pieces.tensors.values()),
        )  # fmt: skip
    middle = 1 << (scheme.bits - 1)
    zeros: StoredTensor | None = None
    if not scheme.symmetric:
        shape = (rows, count) if scheme.strategy != "tensor" else (1,)
        zeros = pieces.get("weight_zero_point", ("i8",), shape)

    def shifted(values: Any) -> Bytes:
        wide = values.astype(np.int16) + middle
        if (wide < 0).any() or (wide >= 2 * middle).any():
            raise CompileError(f"{weight.name} holds codes of more than {scheme.bits} bits.")
        return wide.astype(np.uint8)

    def packed(start: int, stop: int) -> Bytes:
        codes = shifted(weight.numbers()[start:stop])
        return codes if scheme.bits == 8 else pairs_of(codes)

    def zero_points() -> Bytes:
        if zeros is None:
            return np.full((rows, count), middle, np.uint8)
        return np.broadcast_to(shifted(zeros.numbers()).reshape(-1, count), (rows, count))

    return _affine(pieces, scheme, (rows, columns), packed, zero_points, None)


def _floats(pieces: Pieces, scheme: Scheme) -> QuantisedTensor:
    """Codes as f8_e4m3."""
    weight = pieces.matrix("weight", ("f8_e4m3",))
    if scheme.strategy == "block":
        scale = pieces.tensor("weight_scale", _SCALES)
        return block_tensor(pieces, weight, scale, scheme.block)
    scale = _scale(pieces, scheme, weight.shape[0], 1)
    return coded_tensor(
        f"{pieces.module}.weight", "f8e4m3", (weight.shape[0], weight.shape[1]), scale,
        lambda: weight.numbers().view(np.uint8), lambda: _vector(scale, weight.shape[0]),
        list(pieces.tensors.values()),
    )  # fmt: skip


def _vector(scale: StoredTensor, rows: int) -> Floats:
    values = scale.read().astype(np.float32).reshape(-1)
    return np.ascontiguousarray(np.broadcast_to(values, (rows,)))
