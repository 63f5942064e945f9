"""Open safetensors weights: one file, or shards with an index that is the authority."""

import json
import math
import struct
from itertools import pairwise
from pathlib import Path

from inferc.errors import CompileError
from inferc.frontend.mapped_file import MappedFile
from inferc.frontend.weights import (
    DENSE_DTYPES,
    FOREIGN_DTYPE_BYTES,
    StoredTensor,
    WeightStore,
    listed,
)

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_HEADER_LIMIT_BYTES = 100 << 20  # the format's own limit

_DTYPES = {
    "F32": "f32", "F16": "f16", "BF16": "bf16", "F64": "f64", "I64": "i64", "U64": "u64",
    "I32": "i32", "U32": "u32", "I16": "i16", "U16": "u16", "I8": "i8", "U8": "u8",
    "BOOL": "bool", "F8_E4M3": "f8_e4m3", "F8_E5M2": "f8_e5m2", "F8_E8M0": "f8_e8m0",
}  # fmt: skip


def open_safetensors(path: Path) -> WeightStore:
    """The weights of a Hugging Face directory, or of one safetensors file."""
    if path.is_file():
        return WeightStore(path, read_safetensors(path))
    if (path / _INDEX).is_file():
        return WeightStore(path, _read_indexed(path))
    if (path / _SINGLE).is_file():
        return WeightStore(path, read_safetensors(path / _SINGLE))
    raise CompileError(_why_no_weights(path))


def _why_no_weights(path: Path) -> str:
    found = sorted(p.name for p in path.glob("*") if p.suffix in {".safetensors", ".bin", ".pth"})
    if any(name.startswith("model-") and name.endswith(".safetensors") for name in found):
        return f"{path} holds shards ({listed(found)}) but no {_INDEX}: download that file too."
    if any(name.startswith("consolidated") for name in found):
        return (
            f"{path} holds only weights under the publisher's own names ({listed(found)}). inferc "
            f"reads {_SINGLE} with Hugging Face names: download that variant of the model."
        )
    if any(name.endswith((".bin", ".pth")) for name in found):
        return (
            f"{path} holds only pickled weights ({listed(found)}), which inferc does not load. "
            "Save the model again with transformers' save_pretrained to get safetensors."
        )
    return f"{path} holds no weights: expected {_SINGLE} or {_INDEX}; found {listed(found) or '-'}."


def _read_indexed(path: Path) -> dict[str, StoredTensor]:
    weight_map = _read_index(path / _INDEX)
    shards = sorted(set(weight_map.values()))
    missing = [shard for shard in shards if not (path / shard).is_file()]
    if missing:
        tensors = [name for name, shard in weight_map.items() if shard in missing]
        raise CompileError(
            f"Missing shards in {path}: {listed(missing)}. {_INDEX} places {len(tensors)} of "
            f"{len(weight_map)} tensors there ({listed(tensors[:3])}, ...): download them."
        )
    contents = {shard: read_safetensors(path / shard) for shard in shards}
    _check_index(path, weight_map, contents)
    return {name: contents[shard][name] for name, shard in weight_map.items()}


def _read_index(path: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(path.read_text("utf-8"))["weight_map"]
    except (ValueError, KeyError, TypeError) as error:
        raise CompileError(f"{path} is no safetensors index: {error!r}; get it again.") from error
    if not isinstance(weight_map, dict) or not all(isinstance(f, str) for f in weight_map.values()):
        raise CompileError(f"weight_map of {path} should map tensor names to file names.")
    outside = sorted({file for file in weight_map.values() if Path(file).name != file})
    if outside:
        raise CompileError(f"{path} names files outside its folder: {listed(outside)}.")
    return weight_map


def _check_index(
    path: Path, weight_map: dict[str, str], contents: dict[str, dict[str, StoredTensor]]
) -> None:
    """The index against the shards. A tensor that several shards hold is where the index says."""
    elsewhere, nowhere = [], []
    for name, shard in weight_map.items():
        if name in contents[shard]:
            continue
        holders = [other for other, tensors in contents.items() if name in tensors]
        if holders:
            elsewhere.append(f"{name} (said to be in {shard}, is in {' and '.join(holders)})")
        else:
            nowhere.append(f"{name} (said to be in {shard})")
    extra = [
        f"{name} in {shard}"
        for shard, tensors in contents.items()
        for name in tensors
        if name not in weight_map
    ]
    faults = []
    if elsewhere:
        faults.append(f"The index is stale; tensors lie in other shards: {listed(elsewhere)}.")
    if nowhere:
        faults.append(f"Tensors of the index are in no shard: {listed(nowhere)}.")
    if extra:
        faults.append(f"Tensors in the shards are not in the index: {listed(extra)}.")
    if faults:
        raise CompileError(
            f"{path / _INDEX} does not describe its shards. {' '.join(faults)} "
            "Index and shards must come from one version of the model: download them again."
        )


def read_safetensors(path: Path) -> dict[str, StoredTensor]:
    """All tensors of one file, after checking its header against its size."""
    mapped = MappedFile(path)
    header, data_start = _read_header(mapped)
    header.pop("__metadata__", None)
    tensors = {name: _entry(mapped, name, item, data_start) for name, item in header.items()}
    end = max((t._offset + t.nbytes for t in tensors.values()), default=data_start)
    if end > mapped.size_bytes:
        cut = [n for n, t in tensors.items() if t._offset + t.nbytes > mapped.size_bytes]
        raise CompileError(
            f"{path} is truncated: its header describes {end} bytes, the file has "
            f"{mapped.size_bytes}. Cut off: {listed(cut)}. Download it again."
        )
    _check_apart(path, tensors)
    return tensors


def _check_apart(path: Path, tensors: dict[str, StoredTensor]) -> None:
    """No byte belongs to two tensors: the format forbids it, so the header is damaged."""
    placed = sorted((t._offset, t._offset + t.nbytes, t.name) for t in tensors.values() if t.nbytes)
    for (_, end, name), (start, _, other) in pairwise(placed):
        if start < end:
            raise CompileError(
                f"The header of {path} is damaged: {name} and {other} share bytes. Download it "
                "again."
            )


def _read_header(mapped: MappedFile) -> tuple[dict[str, object], int]:
    path, size = mapped.path, mapped.size_bytes
    if size < 8:
        raise CompileError(f"{path} is no safetensors file: {size} bytes, less than a header.")
    (length,) = struct.unpack_from("<Q", mapped.buffer)
    if length > _HEADER_LIMIT_BYTES:
        raise CompileError(f"{path} is no safetensors file: it would have a {length} byte header.")
    if 8 + length > size:
        raise CompileError(f"{path} is truncated inside its header ({size} bytes of {8 + length}).")
    try:
        header = json.loads(mapped.buffer[8 : 8 + length], object_pairs_hook=_unique)
    except ValueError as error:
        raise CompileError(f"The header of {path} is damaged: {error}.") from error
    if not isinstance(header, dict):
        raise CompileError(f"The header of {path} is damaged: it is no JSON object.")
    return header, 8 + length


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Python's json keeps the last of several equal keys; here that would lose a tensor."""
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"names occur twice: {listed(twice)}")
    return result


def _entry(mapped: MappedFile, name: str, item: object, data_start: int) -> StoredTensor:
    dtype, shape, start, end = _fields(mapped.path, name, item)
    item_bytes = (
        DENSE_DTYPES[dtype].itemsize if dtype in DENSE_DTYPES else FOREIGN_DTYPE_BYTES[dtype]
    )
    if end - start != math.prod(shape) * item_bytes:
        raise CompileError(
            f"Tensor {name} in {mapped.path} occupies {end - start} bytes, but {dtype} "
            f"{list(shape)} needs {math.prod(shape) * item_bytes}: the file is damaged."
        )
    return StoredTensor(name, dtype, shape, mapped.path, end - start, mapped, data_start + start)


def _fields(path: Path, name: str, item: object) -> tuple[str, tuple[int, ...], int, int]:
    match item:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(start), int(end)]} if (
            all(isinstance(size, int) and size >= 0 for size in shape) and 0 <= start <= end
        ):
            if dtype not in _DTYPES:
                raise CompileError(
                    f"Tensor {name} in {path} has the unknown type {dtype}; "
                    f"known: {', '.join(_DTYPES)}."
                )
            return _DTYPES[dtype], tuple(shape), start, end
    raise CompileError(f"The header entry of tensor {name} in {path} is damaged: {item!r}.")
