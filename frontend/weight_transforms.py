"""How a parameter is made from stored tensors, as plain data.

The capture side turns these into weight expressions of the IR, where they stay visible and are
checked; `apply` is their meaning in numpy. A transform with `rows_only` moves whole rows, so it may
also be applied to the raw rows of a block format.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inferc.frontend.weights import WeightStore
from inferc.ir.blocks import Floats

Shape = tuple[int, ...]
Array = NDArray[np.generic]


@dataclass(frozen=True)
class UnpermuteHeads:
    """Rows of each head from interleaved rope order (0, D/2, 1, D/2+1, ...) back to halves.

    llama.cpp rotates neighbouring pairs for some architectures, so its converter reorders the rows
    of q and k. Undoing it gives the Hugging Face parameter.
    """

    heads: int
    rows_only = True

    def shape(self, shape: Shape) -> Shape:
        """Unchanged; refuses rows that do not split into heads of even size."""
        if shape[0] % (2 * self.heads):
            raise ValueError(f"{shape[0]} rows are not {self.heads} heads of even size")
        return shape

    def apply(self, array: Array) -> Array:
        """Reorder the rows."""
        half = array.shape[0] // self.heads // 2
        split = array.reshape(self.heads, half, 2, *array.shape[1:])
        return split.swapaxes(1, 2).reshape(array.shape)


@dataclass(frozen=True)
class SubtractOne:
    """Gemma's norms multiply by (1 + w), and GGUF stores 1 + w."""

    rows_only = False

    def shape(self, shape: Shape) -> Shape:
        """Unchanged."""
        return shape

    def apply(self, array: Array) -> Array:
        """`w - 1` in float32."""
        return array.astype(np.float32) - np.float32(1)


@dataclass(frozen=True)
class Transpose:
    """The last two axes exchanged: GPT-2's Conv1D is [in, out], the file may hold [out, in]."""

    rows_only = False

    def shape(self, shape: Shape) -> Shape:
        """The two axes exchanged."""
        if len(shape) < 2:
            raise ValueError(f"shape {shape} has not two axes to exchange")
        return (*shape[:-2], shape[-1], shape[-2])

    def apply(self, array: Array) -> Array:
        """Exchange the two axes."""
        return array.swapaxes(-1, -2)


@dataclass(frozen=True)
class Rows:
    """Rows `[start, stop)` of a tensor that holds several parameters one below the other."""

    start: int
    stop: int
    rows_only = True

    def shape(self, shape: Shape) -> Shape:
        """The rows cut out; refuses a range outside the tensor."""
        if not 0 <= self.start < self.stop <= shape[0]:
            raise ValueError(f"rows {self.start} to {self.stop} are not in shape {shape}")
        return (self.stop - self.start, *shape[1:])

    def apply(self, array: Array) -> Array:
        """Cut the rows out."""
        return array[self.start : self.stop]


@dataclass(frozen=True)
class Stack:
    """Rows cut into `count` equal parts along a new first axis: experts stored one by one."""

    count: int
    rows_only = True

    def shape(self, shape: Shape) -> Shape:
        """Refuses rows that are no such parts."""
        if shape[0] % self.count:
            raise ValueError(f"{shape[0]} rows are not {self.count} equal parts")
        return (self.count, shape[0] // self.count, *shape[1:])

    def apply(self, array: Array) -> Array:
        """Cut the rows."""
        return array.reshape(self.count, -1, *array.shape[1:])


Transform = UnpermuteHeads | SubtractOne | Transpose | Rows | Stack


@dataclass(frozen=True)
class Binding:
    """Parameter = transforms, in order, of the sources joined along an axis."""

    parameter: str
    sources: tuple[str, ...]
    """Names of stored tensors; more than one only if the parameter joins them."""
    transforms: tuple[Transform, ...] = ()
    axis: int = 0

    def shape(self, store: WeightStore) -> Shape:
        """Shape of the parameter that this binding makes; ValueError if it makes none."""
        shapes = [store[source].shape for source in self.sources]
        axis, first = self.axis, shapes[0]
        if len({(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}) != 1:
            raise ValueError(f"shapes {shapes} cannot be joined along axis {axis}")
        stacked = any(isinstance(t, Stack) for t in self.transforms)
        if stacked and len({shape[axis] for shape in shapes}) > 1:
            raise ValueError(f"shapes {sorted(set(shapes))} differ and cannot be stacked")
        if len(shapes) == 1:
            shape: Shape = first
        else:
            shape = (*first[:axis], sum(s[axis] for s in shapes), *first[axis + 1 :])
        for transform in self.transforms:
            shape = transform.shape(shape)
        return shape

    def evaluate(self, store: WeightStore) -> Floats:
        """The parameter in float32: the reference for whatever the compiler makes of it."""
        parts = [store[source].read_float32() for source in self.sources]
        array: Array = np.concatenate(parts, self.axis) if len(parts) > 1 else parts[0]
        for transform in self.transforms:
            array = transform.apply(array)
        return np.ascontiguousarray(array, np.float32)


def identity_bindings(names: Mapping[str, str]) -> tuple[Binding, ...]:
    """Bindings for tensors that are parameters as stored: {stored name: parameter name}."""
    return tuple(Binding(parameter, (stored,)) for stored, parameter in names.items())
