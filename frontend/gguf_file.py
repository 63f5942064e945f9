"""Open GGUF files, split or whole: tensors located, every length checked before it is used."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from inferc.errors import CompileError
from inferc.frontend.gguf_header import Header, HeaderTooShort, TensorInfo, Value, read_header
from inferc.frontend.gguf_types import GGML_TYPES, STORED_TYPES, SUPPORTED_TYPE_NAMES
from inferc.frontend.mapped_file import MappedFile
from inferc.frontend.weights import DENSE_DTYPES, FOREIGN_DTYPE_BYTES, StoredTensor, listed
from inferc.ir.blocks import FORMATS

_DEFAULT_ALIGNMENT_BYTES = 32
_SPLIT_NAME = re.compile(r"^(?P<stem>.*)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf$")


@dataclass(frozen=True)
class GgufFile:
    """Metadata and tensors of one model, which may lie in several split files."""

    path: Path
    metadata: Mapping[str, Value]
    tensors: Mapping[str, StoredTensor]

    @property
    def architecture(self) -> str:
        """The architecture name under which the model's keys are stored."""
        architecture = self.metadata.get("general.architecture")
        if not isinstance(architecture, str):
            raise CompileError(f"{self.path} does not name its architecture; convert it again.")
        return architecture


def is_gguf(path: Path) -> bool:
    """Whether `path` is a file that starts like GGUF."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


def read_gguf(path: Path) -> GgufFile:
    """Read `path`, and the other parts when the model is split over several files."""
    first = _read_part(path)
    count = first.metadata.get("split.count", 1)
    if not isinstance(count, int) or count <= 1:
        return first
    return _join([_read_part(part) for part in _split_paths(path, count)])


def _split_paths(path: Path, count: int) -> list[Path]:
    match = _SPLIT_NAME.match(path.name)
    if not match or int(match["count"]) != count:
        raise CompileError(
            f"{path} is one part of a model split into {count} files, but is not named like "
            f"NAME-00001-of-{count:05}.gguf, so the other parts cannot be found. Rename the parts, "
            "or join them with llama.cpp's `llama-gguf-split --merge`."
        )
    paths = [path.with_name(f"{match['stem']}-{i + 1:05}-of-{count:05}.gguf") for i in range(count)]
    missing = [part.name for part in paths if not part.is_file()]
    if missing:
        raise CompileError(f"{path} is split into {count} files; missing: {listed(missing)}.")
    return paths


def _join(parts: list[GgufFile]) -> GgufFile:
    tensors: dict[str, StoredTensor] = {}
    for number, part in enumerate(parts):
        if part.metadata.get("split.no") != number:
            raise CompileError(
                f"{part.path} says it is part {part.metadata.get('split.no')} (counted from 0), "
                f"its name says {number}: the parts are mixed up."
            )
        twice = sorted(tensors.keys() & part.tensors.keys())
        if twice:
            raise CompileError(f"{part.path} repeats tensors of earlier parts: {listed(twice)}.")
        tensors.update(part.tensors)
    expected = parts[0].metadata.get("split.tensors.count", len(tensors))
    if expected != len(tensors):
        raise CompileError(
            f"{parts[0].path} announces {expected} tensors in all parts together, they hold "
            f"{len(tensors)}: the parts are of different versions."
        )
    return GgufFile(parts[0].path, parts[0].metadata, tensors)


def _read_part(path: Path) -> GgufFile:
    mapped = MappedFile(path)
    try:
        header = read_header(mapped)
    except HeaderTooShort as error:
        raise _truncated(mapped, f"it ends inside the header ({error})") from error
    return GgufFile(path, header.metadata, _place(mapped, header))


def _truncated(mapped: MappedFile, how: str) -> CompileError:
    return CompileError(
        f"{mapped.path} is truncated ({mapped.size_bytes} bytes): {how}. Download it again."
    )


def _alignment(path: Path, metadata: Mapping[str, Value]) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT_BYTES)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise CompileError(f"{path}: general.alignment is {alignment}, not a power of two.")
    return alignment


def _place(mapped: MappedFile, header: Header) -> dict[str, StoredTensor]:
    """Tensors with their bytes located, after checking types, alignment, bounds and overlap."""
    _refuse_unsupported(mapped.path, header.tensors)
    alignment = _alignment(mapped.path, header.metadata)
    start = -(-header.end // alignment) * alignment
    tensors: dict[str, StoredTensor] = {}
    for info in header.tensors:
        if info.name in tensors:
            raise CompileError(f"{mapped.path} holds two tensors called {info.name}.")
        if info.offset % alignment:
            raise CompileError(
                f"{mapped.path}: tensor {info.name} lies at offset {info.offset}, which is no "
                f"multiple of the file's alignment {alignment}; write the file again."
            )
        dtype, nbytes = STORED_TYPES[info.type_id], _tensor_bytes(mapped.path, info)
        tensors[info.name] = StoredTensor(
            info.name, dtype, info.shape, mapped.path, nbytes, mapped, start + info.offset
        )
    _check_extents(mapped, list(tensors.values()))
    return tensors


def _refuse_unsupported(path: Path, infos: Sequence[TensorInfo]) -> None:
    unsupported = [
        f"{info.name} ({GGML_TYPES.get(info.type_id, f'unknown type {info.type_id}')})"
        for info in infos
        if info.type_id not in STORED_TYPES
    ]
    if unsupported:
        raise CompileError(
            f"{path} holds tensors of types that inferc does not support: {listed(unsupported)}. "
            f"Supported: {', '.join(SUPPORTED_TYPE_NAMES)}. Take another quantisation of the model."
        )


def _tensor_bytes(path: Path, info: TensorInfo) -> int:
    dtype = STORED_TYPES[info.type_id]
    if dtype not in FORMATS:
        dense = DENSE_DTYPES.get(dtype)
        return math.prod(info.shape) * (dense.itemsize if dense else FOREIGN_DTYPE_BYTES[dtype])
    try:
        return math.prod(info.shape[:-1]) * FORMATS[dtype].row_bytes(info.shape[-1])
    except (ValueError, IndexError) as error:
        raise CompileError(f"{path}: tensor {info.name} {list(info.shape)}: {error}.") from error


def _check_extents(mapped: MappedFile, tensors: list[StoredTensor]) -> None:
    ordered = sorted(tensors, key=lambda tensor: tensor._offset)
    end = ordered[-1]._offset + ordered[-1].nbytes if ordered else 0
    if end > mapped.size_bytes:
        cut = [t.name for t in ordered if t._offset + t.nbytes > mapped.size_bytes]
        raise _truncated(mapped, f"its tensors need {end} bytes; cut off: {listed(cut)}")
    for before, after in pairwise(ordered):
        if before._offset + before.nbytes > after._offset:
            raise CompileError(f"{mapped.path} is damaged: {before.name} and {after.name} overlap.")
