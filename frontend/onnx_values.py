"""What a name of an ONNX graph stands for while the graph is translated.

Besides tensors of the IR there are values known at compile time: numbers, shapes (their elements
may be symbolic sizes), and tensors of one repeated number. Operations on these are carried out
instead of translated, so that no computation of shapes is left, and none is guessed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

import numpy as np

from inferc.frontend.weights import StoredTensor
from inferc.ir.core import Value
from inferc.ir.dims import Dim, Size

Scalar = int | float | bool | Dim
Item = Union[Value, "Known", "Filled", "Raw", "Unsaid"]


@dataclass(frozen=True, eq=False)
class Known:
    """An array known at compile time. Arrays of sizes have dtype object: ints and Dims."""

    array: np.ndarray
    dtype: str

    @property
    def shape(self) -> tuple[Size, ...]:
        """Its shape."""
        return self.array.shape

    @property
    def is_numeric(self) -> bool:
        """Whether no element is a symbolic size."""
        return not any(isinstance(x, Dim) for x in self.array.flat) if self.is_sizes else True

    @property
    def is_sizes(self) -> bool:
        """Whether elements may be symbolic."""
        return self.array.dtype == object

    def elements(self) -> list[Scalar]:
        """Elements as Python numbers and sizes, row-major."""
        return [x if isinstance(x, Dim) else x.item() if hasattr(x, "item") else x
                for x in self.array.flat]  # fmt: skip


@dataclass(frozen=True)
class Filled:
    """A tensor of any shape, all of whose elements are one number or size."""

    value: Scalar
    shape: tuple[Size, ...]
    dtype: str


@dataclass(frozen=True)
class Raw:
    """A stored tensor of integers: quantised weights, which only their own operators read."""

    tensor: StoredTensor

    @property
    def shape(self) -> tuple[Size, ...]:
        """Its shape."""
        return self.tensor.shape

    @property
    def dtype(self) -> str:
        """Its stored type."""
        return self.tensor.dtype


@dataclass(frozen=True)
class Unsaid:
    """A tensor that the IR cannot express; refused for the reason if anything reads its values.

    Exporters index masks that are all ones by numbers made of sizes: what is read there does not
    depend on the numbers.
    """

    shape: tuple[Size, ...]
    dtype: str
    reason: str


def known(values: list[Scalar] | tuple[Scalar, ...] | Scalar, dtype: str = "i64") -> Known:
    """A known array of numbers or sizes."""
    if isinstance(values, list | tuple):
        if any(isinstance(v, Dim) for v in values):
            array = np.empty(len(values), object)
            array[:] = values
            return Known(array, dtype)
        return Known(np.array(values, np_dtype(dtype)), dtype)
    if isinstance(values, Dim):
        array = np.empty((), object)
        array[()] = values
        return Known(array, dtype)
    return Known(np.array(values, np_dtype(dtype)), dtype)


def np_dtype(dtype: str) -> np.dtype:
    """The numpy type that known values of a dtype are computed in; floats in float64."""
    if dtype.startswith(("f", "bf")):
        return np.dtype(np.float64)
    return np.dtype({"bool": np.bool_, "i32": np.int32, "i8": np.int8, "u8": np.uint8}
                    .get(dtype, np.int64))  # fmt: skip


def settled(array: np.ndarray, dtype: str) -> Known:
    """The array as Known: of plain numbers where no element is symbolic."""
    array = np.asarray(array)
    if array.dtype == object and not any(isinstance(x, Dim) for x in array.flat):
        array = array.astype(np_dtype(dtype))
    return Known(array, dtype)
