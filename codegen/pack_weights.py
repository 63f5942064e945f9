"""Which packed tensors the kernels read, and writing them, one at a time, to one file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from inferc.codegen import packing
from inferc.codegen.group import Group
from inferc.codegen.kernel import WeightUse
from inferc.codegen.units import Units
from inferc.codegen.weight_program import (
    Entries,
    Read,
    Weight,
    sources,
    weight_entries,
    weight_value,
)
from inferc.errors import CompileError
from inferc.ir.core import Module, Op
from inferc.ir.types import TensorType

ALIGNMENT_BYTES = 64
_TILE_ROWS = 16
_SLAB_BYTES = 8 << 20
_RELEASE_BYTES = 128 << 20  # packed since what was read of the stored tensors was last let go
Progress = Callable[[str, int, int], None]  # name of the tensor, bytes done, bytes in all


@dataclass(frozen=True)
class PackItem:
    """One packed tensor: a parameter, or a pair of them, in a layout."""

    name: str
    layout: str
    dtype: str
    shape: tuple[int, ...]
    params: tuple[str, ...]
    nbytes: int

    def sources(self, module: Module) -> tuple[str, ...]:
        """Stored parameters that the item is made of."""
        return tuple(source for param in self.params for source in sources(module, param))


@dataclass(frozen=True)
class PackPlan:
    """Packed tensors in the order of the step's `weights`, and who reads which."""

    items: tuple[PackItem, ...]
    numbers: dict[tuple[Op, int], int] = field(repr=False)  # by op of the group, operand

    def number(self, group: Group, operand: int) -> int:
        """Index of the packed tensor behind an operand of a group."""
        return self.numbers[group.op, operand]

    @property
    def weights_bytes(self) -> int:
        """Bytes of all tensors with their padding."""
        return sum(_padded(item.nbytes) for item in self.items)


def plan_weights(units: Units) -> PackPlan:
    """One item for each (layout, parameters) that a kernel asks for, in order of first use."""
    found: dict[tuple[str, tuple[str, ...]], int] = {}
    items: list[PackItem] = []
    numbers: dict[tuple[Op, int], int] = {}
    for group, unit in units.of_group.items():
        for use in unit.definition.weights(group):
            item = _item(group, use)
            key = (item.layout, item.params)
            if key not in found:
                found[key] = len(items)
                items.append(item)
            for operand in use.operands:
                numbers[group.op, operand] = found[key]
    return PackPlan(tuple(items), numbers)


def _item(group: Group, use: WeightUse) -> PackItem:
    names, types = [], []
    for operand in use.operands:
        producer = group.op.operands[operand].producer
        assert producer is not None and producer.name == "param"
        type_ = producer.result.type
        assert isinstance(type_, TensorType)
        names.append(str(producer.attrs["name"]))
        types.append(type_)
    shape = tuple(int(s) for s in types[0].shape)  # type: ignore[arg-type]
    dtype = types[0].dtype
    if use.layout == "vector" and dtype != "i32":
        dtype = "f32"
    nbytes = _packed_bytes(use.layout, dtype, shape)
    return PackItem(" + ".join(names), use.layout, dtype, shape, tuple(names), nbytes)


def _packed_bytes(layout: str, dtype: str, shape: tuple[int, ...]) -> int:
    if layout == "n16":
        return packing.packed_bytes(dtype, *shape)
    if layout == "n16_pair":
        return packing.packed_pair_bytes(dtype, *shape)
    if layout in ("experts", "experts_pair"):
        return shape[0] * _packed_bytes(layout.replace("experts", "n16"), dtype, shape[1:])
    if layout == "rows":
        return shape[0] * packing.row_bytes(dtype, shape[1])
    return 4 * int(np.prod(shape))


def packed_slabs(item: PackItem, weights: list[Weight]) -> Iterator[NDArray[np.uint8]]:
    """The bytes of an item, some tiles of rows at a time: tiles stand one after another."""
    if item.layout == "rows":
        table = weights[0].rows()
        step = max(_SLAB_BYTES // table.shape[1], 1)
        for start in range(0, table.shape[0], step):
            yield table[start : start + step].reshape(-1)
    elif item.layout == "vector":
        integers = item.dtype == "i32"
        values = weights[0].array.astype(np.int32) if integers else weights[0].values()
        yield np.ascontiguousarray(values).view(np.uint8).reshape(-1)
    else:
        rows = [w.rows() for w in weights]
        step = max(_SLAB_BYTES // rows[0].shape[1] // _TILE_ROWS, 1) * _TILE_ROWS
        for start in range(0, rows[0].shape[0], step):
            slab = [r[start : start + step] for r in rows]
            if any(packing.has_nan(item.dtype, r) for r in slab):
                raise CompileError(
                    f"Weight {item.name}: {item.dtype} values hold codes that stand for NaN, in "
                    f"rows {start} to {start + len(slab[0]) - 1}; expected numbers. "
                    "The checkpoint is damaged or of another kind of float8."
                )
            if item.layout == "n16":
                yield packing.pack(item.dtype, slab[0])
            else:
                yield packing.pack_pair(item.dtype, slab[0], slab[1])


def expert_slabs(item: PackItem, entries: list[Iterator[Weight]]) -> Iterator[NDArray[np.uint8]]:
    """The bytes of stacked matrices: each packed by itself, one behind the other."""
    each = replace(item, layout=item.layout.replace("experts", "n16"), shape=item.shape[1:])
    for weights in zip(*entries, strict=True):
        yield from packed_slabs(each, list(weights))


def _padded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def write_weights(
    path: Path,
    plan: PackPlan,
    module: Module,
    read: Read,
    release: Callable[[str], None],
    progress: Progress,
    entries: Entries = lambda name: None,
) -> tuple[int, ...]:
    """Evaluate, pack and write every item; returns the offsets in the file.

    Of stored tensors as much as `_RELEASE_BYTES` packs is resident, and a slab of the packed form;
    what is computed from them (joined, cast) is resident as a whole, of stacked experts one expert.
    The file is safetensors: `u8` tensors, each padded to and beginning at a multiple of 64 bytes.
    """
    header, _ = _header(plan)
    total, done = plan.weights_bytes, 0
    with path.open("wb") as stream:
        stream.write(header)
        for item in plan.items:
            written, released, stored = 0, 0, item.sources(module)
            for slab in _slabs(item, module, read, release, entries):
                stream.write(slab.data)
                written += slab.nbytes
                if written - released > _RELEASE_BYTES:
                    _release(stored, release)
                    released = written
            _check_size(item, written)
            stream.write(b"\0" * (_padded(written) - written))
            _release(stored, release)
            done += _padded(item.nbytes)
            progress(item.name, done, total)
    return tensor_offsets(plan)


def _release(names: tuple[str, ...], release: Callable[[str], None]) -> None:
    for name in names:
        release(name)


def tensor_offsets(plan: PackPlan) -> tuple[int, ...]:
    """Where each item begins in the file."""
    header, starts = _header(plan)
    return tuple(len(header) + start for start in starts)


def _slabs(
    item: PackItem, module: Module, read: Read, release: Callable[[str], None], entries: Entries
) -> Iterator[NDArray[np.uint8]]:
    types = {param: _param_type(module, param) for param in item.params}
    for param, type_ in types.items():
        if item.layout != "vector" and type_.dtype != item.dtype:
            raise CompileError(f"Weight {param}: planned as {item.dtype}, found {type_}.")
    if item.layout.startswith("experts"):
        return expert_slabs(
            item, [weight_entries(module, p, t, read, release, entries) for p, t in types.items()]
        )
    return packed_slabs(item, [weight_value(module, p, t, read) for p, t in types.items()])


def _check_size(item: PackItem, written: int) -> None:
    if written != item.nbytes:
        raise CompileError(f"Weight {item.name}: packed to {written} bytes, planned {item.nbytes}.")


def _param_type(module: Module, name: str) -> TensorType:
    for func in module:
        op = None if func.name.startswith("pack/") else func.params().get(name)
        if op is not None:
            assert isinstance(op.result.type, TensorType)
            return op.result.type
    raise KeyError(name)


def _header(plan: PackPlan) -> tuple[bytes, list[int]]:
    """Header of a safetensors file, padded so that data begins at a multiple of 64."""
    table, starts, at = {}, [], 0
    for item in plan.items:
        size = _padded(item.nbytes)
        name = f"{item.name} [{item.layout}]"
        table[name] = {"dtype": "U8", "shape": [size], "data_offsets": [at, at + size]}
        starts.append(at)
        at += size
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT_BYTES)
    return len(text).to_bytes(8, "little") + text, starts
