"""Initialisers of an ONNX graph as stored tensors, and tensors computed from them when read."""

from __future__ import annotations

import math

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from inferc.errors import CompileError
from inferc.frontend.computed_tensor import ComputedTensor
from inferc.frontend.onnx_proto import OnnxFile
from inferc.frontend.weights import StoredTensor

# TensorProto.DataType -> our name
DTYPES = {
    onnx.TensorProto.FLOAT: "f32",
    onnx.TensorProto.FLOAT16: "f16",
    onnx.TensorProto.BFLOAT16: "bf16",
    onnx.TensorProto.DOUBLE: "f64",
    onnx.TensorProto.INT64: "i64",
    onnx.TensorProto.INT32: "i32",
    onnx.TensorProto.INT8: "i8",
    onnx.TensorProto.UINT8: "u8",
    onnx.TensorProto.BOOL: "bool",
}


def dtype_of(data_type: int, what: str) -> str:
    """Our name of an ONNX element type. Raises CompileError."""
    if data_type not in DTYPES:
        known, names = ", ".join(DTYPES.values()), onnx.TensorProto.DataType
        name = names.Name(data_type) if data_type in names.values() else f"number {data_type}"
        raise CompileError(f"{what} is of type {name}, which is not supported; supported: {known}.")
    return DTYPES[data_type]


def stored(file: OnnxFile, tensor: onnx.TensorProto, data_type: str | None = None) -> StoredTensor:
    """One initialiser; its values are read when asked for."""
    dtype = data_type or dtype_of(tensor.data_type, f"Tensor {tensor.name} of {file.path}")
    shape = tuple(tensor.dims)
    place = file.places.get(tensor.name)
    if place is not None:
        _check_length(tensor, dtype, place.nbytes)
        return StoredTensor(
            tensor.name, dtype, shape, place.file.path, place.nbytes, place.file, place.offset
        )
    array = numpy_helper.to_array(tensor)
    return held(file, tensor.name, dtype, shape, array)


def _check_length(tensor: onnx.TensorProto, dtype: str, nbytes: int) -> None:
    """Raises CompileError where the bytes are not those of the shape."""
    item = _ITEM_BYTES[dtype]
    if nbytes != math.prod(tensor.dims) * item:
        raise CompileError(
            f"tensor {tensor.name} has {nbytes} bytes of values, but {dtype} {list(tensor.dims)} "
            f"needs {math.prod(tensor.dims) * item}: the file is damaged."
        )


def held(
    file: OnnxFile, name: str, dtype: str, shape: tuple[int, ...], array: NDArray[np.generic]
) -> ComputedTensor:
    """A small tensor that the proto itself holds."""
    return ComputedTensor.of(name, dtype, shape, file.path, array.nbytes, lambda: array)


_ITEM_BYTES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i8": 1, "u8": 1,
               "bool": 1}  # fmt: skip
_NUMPY = {
    "f64": np.float64,
    "i64": np.int64,
    "i32": np.int32,
    "i8": np.int8,
    "u8": np.uint8,
    "bool": np.bool_,
}


def integers(tensor: StoredTensor) -> NDArray[np.generic]:
    """The values of a tensor that is no weight, not copied where they lie in a file."""
    if isinstance(tensor, ComputedTensor):
        return tensor.read()
    raw = tensor._map.view(tensor._offset, tensor.nbytes)
    return raw.view(_NUMPY[tensor.dtype]).reshape(tensor.shape)
