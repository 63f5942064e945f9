"""Types of values: tensors (plain or block-quantised), KV caches, recurrent states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Union

import ml_dtypes
import numpy as np

from inferc.ir.blocks import FORMATS
from inferc.ir.dims import Size, product, substitute

Type = Union["TensorType", "CacheType", "StateType"]

FLOATS = ("f64", "f32", "f16", "bf16", "f8e4m3")
KV_SCALE_BYTES = {"i8": 4}
"""Bytes of the scale of a token and KV head, of K and of V, by the dtype of a cache: a float32."""
INTEGERS = ("i64", "i32", "i8", "u8")
_NUMPY: dict[str, np.dtype] = {
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f8e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "i8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
    "bool": np.dtype(np.bool_),
}
DTYPES = (*_NUMPY, *FORMATS)


def numpy_dtype(dtype: str) -> np.dtype:
    """The numpy dtype of a plain dtype name. Raises KeyError for block formats."""
    return _NUMPY[dtype]


@dataclass(frozen=True)
class TensorType:
    """A tensor. `dtype` may be a block format; its blocks then run along the last axis."""

    shape: tuple[Size, ...]
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"unknown dtype {self.dtype!r}; known: {', '.join(DTYPES)}")
        if self.is_block and not self.shape:
            raise ValueError(f"{self.dtype} needs at least one axis")

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def is_block(self) -> bool:
        """Whether the dtype is a block-quantised format."""
        return self.dtype in FORMATS

    @property
    def is_float(self) -> bool:
        """Whether the values are real numbers (block formats included)."""
        return self.dtype in FLOATS or self.is_block

    @property
    def elements(self) -> Size:
        """Number of elements."""
        return product(self.shape)

    @property
    def nbytes(self) -> Size:
        """Bytes as stored."""
        if self.is_block:
            block = FORMATS[self.dtype]
            return self.elements * block.block_bytes // block.block_elements
        return self.elements * _NUMPY[self.dtype].itemsize

    def with_shape(self, shape: tuple[Size, ...]) -> TensorType:
        """Same dtype, other shape."""
        return TensorType(shape, self.dtype)

    def with_dtype(self, dtype: str) -> TensorType:
        """Same shape, other dtype."""
        return TensorType(self.shape, dtype)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class CacheType:
    """Keys and values of all past tokens of one attention op, in pages.

    K of a page is `[kv_heads][k_dim][page_tokens]`, V is `[kv_heads][page_tokens][v_dim]`.
    What a head has of a page of i8 ends with a float32 scale for each token, by which its numbers
    are multiplied: `[kv_heads]([k_dim][page_tokens], [page_tokens])`, V alike.
    `page_tokens` is None until plan-kv has chosen it; `window` is None for full attention. With
    `v_in_k` no V is stored: values are the first `v_dim` components of the keys.
    """

    kv_heads: int
    k_dim: int
    v_dim: int
    dtype: str
    page_tokens: int | None = None
    window: int | None = None
    v_in_k: bool = False

    def __post_init__(self) -> None:
        if self.v_in_k and self.v_dim > self.k_dim:
            raise ValueError(f"values of {self.v_dim} are no part of keys of {self.k_dim}")

    @property
    def stored_v_dim(self) -> int:
        """Components of a value that are stored beside the key."""
        return 0 if self.v_in_k else self.v_dim

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token takes in this cache."""
        numbers = (self.k_dim + self.stored_v_dim) * _NUMPY[self.dtype].itemsize
        scales = KV_SCALE_BYTES.get(self.dtype, 0) * (1 if self.v_in_k else 2)
        return self.kv_heads * (numbers + scales)

    def __str__(self) -> str:
        extra = f", page={self.page_tokens}" if self.page_tokens is not None else ""
        extra += f", window={self.window}" if self.window is not None else ""
        extra += ", v_in_k" if self.v_in_k else ""
        return f"cache[{self.kv_heads}, {self.k_dim}, {self.v_dim}, {self.dtype}{extra}]"


@dataclass(frozen=True)
class StateType:
    """What a recurrent op remembers of a sequence, of fixed size: a pool `[slots][*shape]`.

    Every sequence being served has a slot; at position 0 its state counts as zero.
    """

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes that one sequence takes."""
        return prod(self.shape) * _NUMPY[self.dtype].itemsize

    def __str__(self) -> str:
        return f"state[{', '.join(map(str, (*self.shape, self.dtype)))}]"


Memory = CacheType | StateType
"""Types of values that are used linearly and updated in place by planned code."""


def substitute_type(type_: Type, replacements: Mapping[str, Size]) -> Type:
    """Replace symbols in the shape of a tensor type."""
    if isinstance(type_, Memory):
        return type_
    return type_.with_shape(tuple(substitute(s, replacements) for s in type_.shape))
