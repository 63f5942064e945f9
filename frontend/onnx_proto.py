"""Reads an ONNX file without its weights: the graph as a small proto, tensors as places in files.

Weights may be bytes inside the file or lie in external files; both are memory mapped, so a model
larger than memory, or than the 2 GB that protobuf can parse, opens in milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from inferc.errors import CompileError
from inferc.frontend.mapped_file import MappedFile

SMALL_BYTES = 1 << 15  # tensors up to here stay in the proto: shapes, scalars, frequencies
OPSETS = range(17, 25)

# Field numbers of onnx.proto3, which never change.
_MODEL_GRAPH, _GRAPH_INITIALIZER = 7, 5
_TENSOR_RAW, _TENSOR_FLOATS, _TENSOR_NAME = 9, 4, 8


@dataclass(frozen=True)
class Place:
    """Bytes `[offset, offset + nbytes)` of a mapped file."""

    file: MappedFile
    offset: int
    nbytes: int


@dataclass(frozen=True)
class OnnxFile:
    """A model without its large tensors.

    Attributes:
        path: The `.onnx` file.
        mapped: Its bytes.
        model: The proto; initialisers that are in `places` have no values.
        places: Where the values of large or external initialisers are, by name.
        opset: Version of the default operator set.
    """

    path: Path
    mapped: MappedFile
    model: onnx.ModelProto
    places: dict[str, Place]
    opset: int


def is_onnx(path: Path) -> bool:
    """Whether a path is meant to be an ONNX file."""
    return path.suffix == ".onnx" and path.is_file()


def open_onnx(path: Path) -> OnnxFile:
    """Read the graph. Raises CompileError where the file is damaged or too new."""
    mapped = MappedFile(path)
    try:
        slim, embedded = _without_weights(mapped)
        model = onnx.ModelProto.FromString(slim)
    except (ValueError, IndexError, DecodeError) as error:
        raise CompileError(f"{path} is not an ONNX model, or is damaged: {error}.") from error
    if not model.graph.node:
        raise CompileError(f"{path} is not an ONNX model: it holds no graph.")
    if model.ir_version > onnx.IR_VERSION:
        raise CompileError(
            f"{path} is of IR version {model.ir_version}; the installed onnx {onnx.__version__} "
            f"reads up to {onnx.IR_VERSION}. Install a newer onnx, or export the model again."
        )
    opset = _opset(path, model)
    places = {name: Place(mapped, start, size) for name, (start, size) in embedded.items()}
    places |= _external(path, model)
    return OnnxFile(path, mapped, model, places, opset)


def _opset(path: Path, model: onnx.ModelProto) -> int:
    versions = {o.domain: o.version for o in model.opset_import}
    version = int(versions.get("", versions.get("ai.onnx", 0)))
    if version not in OPSETS:
        raise CompileError(
            f"{path} is of opset {version}; opsets {OPSETS.start} to {OPSETS.stop - 1} are "
            "supported. Export the model again with one of these, or convert it with "
            "onnx.version_converter."
        )
    return version


def _external(path: Path, model: onnx.ModelProto) -> dict[str, Place]:
    """Tensors in files beside the model; those of one file share its mapping."""
    files: dict[str, MappedFile] = {}
    places = dict[str, Place]()
    for tensor in model.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        entry = {item.key: item.value for item in tensor.external_data}
        location = entry.get("location", "")
        folder, file = path.parent.resolve(), (path.parent / location).resolve()
        if not location or folder not in file.parents:
            raise CompileError(
                f"Tensor {tensor.name} of {path} lies in {location or 'no file'!r}, outside of the "
                "model's folder."
            )
        if not file.is_file():
            raise CompileError(
                f"Tensor {tensor.name} of {path} lies in {location}, which is not beside the "
                "model: copy that file too."
            )
        if location not in files:
            files[location] = MappedFile(file)
        mapped = files[location]
        offset = _number(tensor, entry, "offset", 0)
        nbytes = _number(tensor, entry, "length", max(mapped.size_bytes - offset, 0))
        if offset + nbytes > mapped.size_bytes:
            raise CompileError(
                f"{file} is truncated: tensor {tensor.name} ends at byte {offset + nbytes}, the "
                f"file has {mapped.size_bytes}. Get it again."
            )
        places[tensor.name] = Place(mapped, offset, nbytes)
    return places


def _number(tensor: onnx.TensorProto, entry: dict[str, str], key: str, default: int) -> int:
    """A place in a file: a decimal number, as text."""
    text = entry.get(key, str(default))
    if not (text.isascii() and text.isdigit()):
        raise CompileError(
            f"Tensor {tensor.name} lies at {key} {text!r} of {entry.get('location')}, which is no "
            "place in a file: the model is damaged."
        )
    return int(text)


def _without_weights(mapped: MappedFile) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """The encoded model without large values, and where each of these values is in the file."""
    found: dict[str, tuple[int, int]] = {}
    out = bytearray()
    for field, start, begin, end in _fields(mapped, 0, mapped.size_bytes):
        if field == _MODEL_GRAPH:
            graph = _graph(mapped, begin, end, found)
            out += _header(_MODEL_GRAPH, len(graph)) + graph
        else:
            out += _bytes(mapped, start, end)
    return bytes(out), found


def _graph(
    mapped: MappedFile, begin: int, end: int, found: dict[str, tuple[int, int]]
) -> bytearray:
    out = bytearray()
    for field, start, first, last in _fields(mapped, begin, end):
        if field == _GRAPH_INITIALIZER and last - first > SMALL_BYTES:
            tensor = _tensor(mapped, first, last, found)
            out += _header(_GRAPH_INITIALIZER, len(tensor)) + tensor
        else:
            out += _bytes(mapped, start, last)
    return out


def _tensor(
    mapped: MappedFile, begin: int, end: int, found: dict[str, tuple[int, int]]
) -> bytearray:
    out, name, values = bytearray(), "", None
    for field, start, first, last in _fields(mapped, begin, end):
        if field in (_TENSOR_RAW, _TENSOR_FLOATS) and last - first > SMALL_BYTES:
            values = (first, last - first)
            continue
        if field == _TENSOR_NAME:
            name = _bytes(mapped, first, last).decode()
        out += _bytes(mapped, start, last)
    if values is not None:
        found[name] = values
    return out


def _fields(mapped: MappedFile, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Fields of an encoded message: number, start, and begin and end of the payload."""
    while at < end:
        start = at
        key, at = _varint(mapped, at)
        kind = key & 7
        if kind == 0:
            begin = at
            _, at = _varint(mapped, at)
        elif kind == 2:
            length, begin = _varint(mapped, at)
            at = begin + length
        elif kind in (1, 5):
            begin, at = at, at + (8 if kind == 1 else 4)
        else:
            raise ValueError(f"wire type {kind} at byte {start}")
        if at > end:
            raise ValueError(f"the field at byte {start} is cut off: an interrupted download?")
        yield key >> 3, start, begin, at


def _varint(mapped: MappedFile, at: int) -> tuple[int, int]:
    value, shift, data = 0, 0, mapped.buffer
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError(f"no number at byte {at}")


def _bytes(mapped: MappedFile, start: int, end: int) -> bytes:
    return bytes(mapped.buffer[start:end])


def _header(field: int, length: int) -> bytes:
    out, rest = bytearray([field << 3 | 2]), length
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)
